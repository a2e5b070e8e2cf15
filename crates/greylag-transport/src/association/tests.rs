//! Tests that would be long as transcripts.

use super::*;

fn association() -> Association {
    Association::new(TransportSettings::new("shop"), 1)
}

fn uid(n: u64) -> Uid {
    Uid::new(n).unwrap()
}

fn feed(machine: &mut Association, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(Instant::now(), input, &mut effects);
    effects
}

/// Cluster T15: in a crash loop the process that was replaced last must not come back, whatever uids were drawn; of
/// more than `MAX_RETIRED` the oldest is forgotten first.
#[test]
fn the_oldest_retired_process_is_forgotten_first() {
    let mut machine = association();
    let last = MAX_RETIRED as u64 + 3;
    // Later processes have smaller uids.
    for n in 0..last {
        assert!(feed(&mut machine, Input::Hello { uid: uid(1000 - n), host_id: None }).contains(&Effect::Admit));
    }
    assert!(machine.is_dead(uid(1000 - last + 2)), "replaced by the last one");
    assert_eq!(machine.retired.len(), MAX_RETIRED);
    assert!(!machine.is_dead(uid(1000)) && !machine.is_dead(uid(999)) && machine.is_dead(uid(998)));
}

/// Cluster T19, T21: a caller that is known only by its own Hello is not probed; once the caller was reached it is
/// probed.
#[test]
fn a_caller_is_not_dialled_on_its_own_word() {
    let mut machine = association();
    feed(&mut machine, Input::Hello { uid: uid(1), host_id: None });
    assert!(machine.next_deadline().is_some(), "a member would be probed");
    feed(&mut machine, Input::Unproven);
    assert_eq!(machine.next_deadline(), None);
    assert!(machine.is_unreached());
    feed(&mut machine, Input::Wanted { lane: Lane::CONTROL });
    assert!(!machine.is_unreached(), "a dial is under way");
    feed(&mut machine, Input::Accepted { lane: Lane::CONTROL, seq: 1, uid: uid(1), host_id: None });
    feed(&mut machine, Input::Failed { lane: Lane::CONTROL, seq: 1 });
    feed(&mut machine, Input::Unproven);
    assert!(!machine.is_unreached() && machine.next_deadline().is_some());
}

/// Cluster T19 (c, d), T41: a process has taken leave once it said that it ends, or was quarantined for leaving in
/// order; a process that was cut off has not, nor has another one at the same address.
#[test]
fn a_process_that_says_so_has_taken_leave() {
    let mut machine = association();
    feed(&mut machine, Input::Hello { uid: uid(1), host_id: None });
    assert!(!machine.has_taken_leave(uid(1)));
    feed(&mut machine, Input::Terminating { uid: uid(1) });
    assert!(machine.has_taken_leave(uid(1)) && !machine.has_taken_leave(uid(2)));
    for (n, harmless) in [(3, true), (4, false)] {
        let reason = QuarantineReason::RemovedFromMembership;
        feed(&mut machine, Input::Quarantine { uid: uid(n), reason, harmless });
        assert_eq!(machine.has_taken_leave(uid(n)), harmless);
    }
}

/// A closed port is expected where the last process took leave, until another process is met there.
#[test]
fn leave_marks_the_address_vacant_until_the_next_process() {
    for harmless in [true, false] {
        let mut machine = association();
        assert!(!machine.is_vacant(), "no process was met there");
        feed(&mut machine, Input::Hello { uid: uid(1), host_id: None });
        assert!(!machine.is_vacant());
        let reason = QuarantineReason::RemovedFromMembership;
        feed(&mut machine, Input::Quarantine { uid: uid(1), reason, harmless });
        assert_eq!(machine.is_vacant(), harmless);
        feed(&mut machine, Input::Hello { uid: uid(2), host_id: None });
        assert!(!machine.is_vacant());
    }
}
