//! `--wait`: follows the cluster's events until the requested change has happened.
//!
//! Every event is only a reason to read the members again, so the kinds of events do not matter. None can be missed:
//! the stream is opened before the command is sent.

use greylag_management::v1;

use crate::call::Call;
use crate::failure::Failure;

/// A stream of events.
pub(crate) struct EventStream {
    events: tonic::Streaming<v1::WatchEvent>,
}

impl EventStream {
    pub(crate) async fn start(call: &mut Call) -> Result<Self, Failure> {
        let begun = call.client.watch(v1::WatchRequest {}).await;
        Ok(Self { events: call.answer(begun)? })
    }

    /// Waits until the members satisfy a condition. A node that ends is no member any more.
    pub(crate) async fn until(
        mut self,
        call: &mut Call,
        wanted: impl Fn(&v1::MembersReply) -> bool,
    ) -> Result<(), Failure> {
        let mut last = call.members().await?;
        let mut ends = false;
        while !wanted(&last) {
            match self.events.message().await {
                Ok(Some(event)) => ends |= event.kind == "ClusterShuttingDown",
                // The called node has ended in order; its leaving may be the requested change.
                Ok(None) | Err(_) if ends => {
                    last.members.retain(|member| name(member) != format!("{}#{}", last.self_address, last.self_uid));
                    return if wanted(&last) { Ok(()) } else { Err(node_ended(call)) };
                }
                Ok(None) => return Err(node_ended(call)),
                Err(status) => return Err(Failure::from_status(&call.address, &status)),
            }
            match call.members().await {
                Ok(members) => last = members,
                // The next event of the stream tells how the node ended.
                Err(_) if ends => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

fn node_ended(call: &Call) -> Failure {
    Failure::Unreachable(format!("the node at {} ended before the change was complete; ask another node", call.address))
}

fn name(member: &v1::Member) -> String {
    format!("{}#{}", member.address, member.uid)
}

/// Condition: the member with this unique address is Up.
pub(crate) fn is_up(unique: &str) -> impl Fn(&v1::MembersReply) -> bool {
    move |reply| reply.members.iter().any(|member| name(member) == unique && member.status() == v1::Status::Up)
}

/// Condition: none of these unique addresses is a member.
pub(crate) fn are_gone(unique: &[String]) -> impl Fn(&v1::MembersReply) -> bool {
    move |reply| !reply.members.iter().any(|member| unique.contains(&name(member)))
}

/// Condition: every member is ready for the shutdown, or on its way out.
pub(crate) fn are_ready(reply: &v1::MembersReply) -> bool {
    reply.members.iter().all(|member| {
        matches!(
            member.status(),
            v1::Status::ReadyForShutdown | v1::Status::Leaving | v1::Status::Exiting | v1::Status::Down
        )
    })
}
