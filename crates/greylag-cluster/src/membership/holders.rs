//! Converts members for the transport: which member holds which address, which processes can have replaced it there,
//! and texts for people.
//!
//! Source: cluster T15, S20 (a), M25.

use std::sync::Arc;

use greylag_transport::{Holder, Replacers};

use crate::membership::member::{Member, MemberStatus};
use crate::membership::members::Members;
use crate::settings::{ClusterSettings, Downing, ProofOfDeath};

impl ProofOfDeath {
    /// The processes that can have replaced one that named this host, at its address.
    pub fn replacers(self, host_id: Option<&Arc<str>>) -> Replacers {
        match (self, host_id) {
            (Self::Off, _) | (Self::Local, None) => Replacers::None,
            (Self::Local, Some(host)) => Replacers::Host(host.clone()),
            (Self::On, _) => Replacers::Any,
        }
    }
}

impl ClusterSettings {
    /// The holders that the transport is told for these members.
    pub fn holders(&self, members: &Members) -> Vec<Holder> {
        let ends_by: Arc<str> = match &self.downing {
            Downing::None => {
                "it leaves, an operator downs it because its process has ended, or a witness tells of its death; \
                 downing = none does it never"
                    .into()
            }
            Downing::SplitBrainResolver(_) | Downing::Custom(_) => {
                "it leaves, is found unreachable and downed by the resolver, is downed by an operator, or a witness \
                 tells of its death"
                    .into()
            }
        };
        let statuses: Vec<(MemberStatus, Arc<str>)> =
            MemberStatus::ALL.into_iter().map(|status| (status, status.to_string().into())).collect();
        let name =
            |status| statuses.iter().find(|(known, _)| *known == status).expect("ALL has every status").1.clone();
        let holder = |member: &Member| Holder {
            member: member.address.clone(),
            replacers: self.proof_of_death.replacers(member.host_id.as_ref()),
            status: name(member.status),
            ends_by: ends_by.clone(),
        };
        members.iter().map(holder).collect()
    }
}
