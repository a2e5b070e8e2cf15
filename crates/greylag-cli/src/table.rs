//! Text for people.

use std::collections::HashMap;
use std::fmt::Write as _;

use greylag_management::v1;

use crate::json::status;

/// Columns as wide as their widest cell; the last one is not padded.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _infallible = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The text, or a dash if it is empty.
pub(crate) fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// `MEMBERS`, and the members' duties.
pub(crate) fn members(reply: &v1::MembersReply) -> String {
    let own = format!("{}#{}", reply.self_address, reply.self_uid);
    let duties = |unique: &str| {
        let mut duties = Vec::new();
        for (is, duty) in
            [(unique == own, "self"), (unique == reply.leader, "leader"), (unique == reply.oldest, "oldest")]
        {
            duties.extend(is.then(|| duty.to_owned()));
        }
        let mut of_roles: Vec<String> = Vec::new();
        of_roles.extend(
            reply.role_leaders.iter().filter(|(_, who)| *who == unique).map(|(role, _)| format!("leader:{role}")),
        );
        of_roles.extend(
            reply.role_oldest.iter().filter(|(_, who)| *who == unique).map(|(role, _)| format!("oldest:{role}")),
        );
        of_roles.sort();
        duties.extend(of_roles);
        or_dash(duties.join(","))
    };
    let rows: Vec<Vec<String>> = reply
        .members
        .iter()
        .map(|member| {
            vec![
                member.address.clone(),
                member.uid.to_string(),
                status(member.status()).to_owned(),
                reachable(member),
                member.up_number.map_or_else(|| "-".to_owned(), |number| number.to_string()),
                member.app_version.clone(),
                or_dash(member.roles.join(",")),
                duties(&format!("{}#{}", member.address, member.uid)),
            ]
        })
        .collect();
    let mut text = table(&["ADDRESS", "UID", "STATUS", "REACHABLE", "AGE", "VERSION", "ROLES", "DUTIES"], &rows);
    let state = match (reply.cluster_id.is_empty(), reply.converged) {
        (true, _) => "not a member of a cluster yet",
        (false, true) => "converged",
        (false, false) => "not converged",
    };
    let _infallible = write!(text, "cluster {}: {} members, {state}; seen by {own}", reply.cluster_name, rows.len());
    text
}

fn reachable(member: &v1::Member) -> String {
    match (member.dead, member.unreachable) {
        (true, _) => "dead".to_owned(),
        (false, false) => "yes".to_owned(),
        (false, true) if member.unreachable_by.is_empty() => "no".to_owned(),
        (false, true) => format!("no (says {})", member.unreachable_by.join(",")),
    }
}

/// `healthy`, or the problems, a line each.
pub(crate) fn health(reply: &v1::HealthReply) -> String {
    let mut text = if reply.healthy { "healthy".to_owned() } else { "not healthy".to_owned() };
    for problem in &reply.problems {
        let _infallible = write!(text, "\n  {problem}");
    }
    for reason in &reply.degraded {
        let _infallible = write!(text, "\n  worth a look: {reason}");
    }
    let ready = if reply.ready { "ready" } else { "not ready" };
    let own = if reply.initialized { status(reply.self_status()) } else { "no member" };
    let leader = or_dash(reply.leader.clone());
    let _infallible = write!(text, "\n{ready}, self {own}, leader {leader}\n{}", undelivered(&reply.dead_letters));
    text
}

/// Counts of undelivered messages by reason, the largest first. A total alone would look like a loss, but a question to
/// a node that has just left, or a message that was sent again after its queue was full, is none.
fn undelivered(by_reason: &HashMap<String, u64>) -> String {
    let mut reasons: Vec<_> = by_reason.iter().map(|(reason, count)| (*count, reason)).collect();
    reasons.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let total: u64 = reasons.iter().map(|(count, _)| count).sum();
    if total == 0 {
        return "every message was delivered since the start".to_owned();
    }
    let reasons: Vec<String> = reasons.into_iter().map(|(count, reason)| format!("{reason} {count}")).collect();
    format!(
        "{total} messages not delivered since the start: {}; protocols that repeat, such as reliable delivery, sent \
         theirs again (`greylag counters` names the peers)",
        reasons.join(", ")
    )
}

/// Counters, then dropped messages.
pub(crate) fn counters(reply: &v1::CountersReply) -> String {
    let totals = [
        ("sent envelopes", reply.sent_envelopes),
        ("sent frames", reply.sent_frames),
        ("sent bytes", reply.sent_bytes),
        ("received envelopes", reply.received_envelopes),
        ("received frames", reply.received_frames),
        ("skipped frames", reply.skipped_frames),
        ("malformed frames", reply.malformed_frames),
    ];
    let rows: Vec<Vec<String>> =
        totals.iter().map(|(name, count)| vec![(*name).to_owned(), count.to_string()]).collect();
    let mut text = table(&["COUNTER", "VALUE"], &rows);
    let rows: Vec<Vec<String>> = reply
        .dead_letters
        .iter()
        .map(|one| {
            vec![one.reason.clone(), or_dash(one.lane.clone()), or_dash(one.peer.clone()), one.count.to_string()]
        })
        .collect();
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table(&["DROPPED", "LANE", "PEER", "COUNT"], &rows));
    }
    text
}

/// One line; a snapshot is a table.
pub(crate) fn event(event: &v1::WatchEvent) -> String {
    let seconds = event.wall_ms / 1000 % 86_400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{hours:02}:{minutes:02}:{seconds:02}Z {}", event.kind);
    if let Some(member) = &event.member {
        let _infallible = write!(text, " {}#{} ({})", member.address, member.uid, status(member.status()));
    }
    let mut details: Vec<_> = event.details.iter().collect();
    details.sort();
    for (name, value) in details {
        let _infallible = write!(text, " {name}={}", or_dash(value.clone()));
    }
    if let Some(snapshot) = &event.snapshot {
        let _infallible = write!(text, "\n{}", members(snapshot));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undelivered_messages_are_counted_by_reason() {
        let mut by_reason = HashMap::new();
        assert!(undelivered(&by_reason).starts_with("every message"));
        by_reason.insert("QueueFull".to_owned(), 20);
        by_reason.insert("NoSuchRecipient".to_owned(), 300);
        let text = undelivered(&by_reason);
        assert!(
            text.starts_with("320 messages not delivered since the start: NoSuchRecipient 300, QueueFull 20;"),
            "{text}"
        );
    }
}
