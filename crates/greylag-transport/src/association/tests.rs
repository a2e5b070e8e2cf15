//! What would be long to tell in a transcript.

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

/// Cluster T15: in a crash loop the process that was replaced last is the one that must not come back,
/// whatever uids chance has drawn.
#[test]
fn of_the_dead_the_oldest_is_forgotten_first() {
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
