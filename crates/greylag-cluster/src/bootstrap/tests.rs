use super::*;

struct One {
    machine: Bootstrap,
    start: Instant,
}

fn address(text: &str) -> NodeAddress {
    text.parse().expect("an address")
}

fn unique(text: &str) -> UniqueAddress {
    text.parse().expect("a unique address")
}

impl One {
    fn new(node: &str, required: usize) -> Self {
        let start = Instant::now();
        Self { machine: Bootstrap::new(unique(node), BootstrapSettings::new(required), start), start }
    }

    fn at(&mut self, seconds: u64, input: BootstrapInput) -> Vec<BootstrapEffect> {
        let mut out = Vec::new();
        self.machine.handle(self.start + Duration::from_secs(seconds), input, &mut out);
        out
    }

    fn answer(&mut self, seconds: u64, answer: &[&str]) -> Vec<BootstrapEffect> {
        self.at(seconds, BootstrapInput::Discovered(answer.iter().map(|text| address(text)).collect()))
    }

    fn hear(&mut self, seconds: u64, from: &str, message: BootstrapMessage) -> Vec<BootstrapEffect> {
        self.at(seconds, BootstrapInput::Received { from: unique(from), message })
    }
}

fn send(to: &str, message: BootstrapMessage) -> BootstrapEffect {
    BootstrapEffect::Send { to: unique(to).into(), message }
}

fn founds(effects: &[BootstrapEffect]) -> bool {
    effects.iter().any(|effect| matches!(effect, BootstrapEffect::Found(_)))
}

const THREE: [&str; 3] = ["c:1", "a:1", "b:1"];

/// cluster M24: the first of the sorted list founds a cluster with the votes of enough others, and not before.
#[test]
fn the_first_of_a_stable_answer_founds_with_enough_votes() {
    let mut a = One::new("a:1#1", 3);
    assert!(a.answer(0, &THREE).is_empty(), "not stable yet");
    let effects = a.answer(5, &THREE);
    assert_eq!(effects[0], BootstrapEffect::Join(vec![address("b:1"), address("c:1")]), "meanwhile it may join");
    assert_eq!(
        effects.iter().filter(|e| matches!(e, BootstrapEffect::Send { message: BootstrapMessage::Ask, .. })).count(),
        2
    );
    assert!(!founds(&a.hear(6, "b:1#2", BootstrapMessage::Vote { ballot: 1 })));
    assert!(!founds(&a.hear(6, "b:1#2", BootstrapMessage::Vote { ballot: 1 })), "one node has one vote");
    let effects = a.hear(7, "c:1#3", BootstrapMessage::Vote { ballot: 1 });
    assert!(
        effects.contains(&BootstrapEffect::Found(vec![address("a:1"), address("b:1"), address("c:1")])),
        "{effects:?}"
    );
}

#[test]
fn answers_that_change_are_not_stable_and_absent_ones_say_nothing() {
    let mut b = One::new("b:1#2", 2);
    b.answer(0, &THREE);
    b.answer(3, &["a:1", "b:1"]);
    assert!(b.answer(6, &["b:1", "a:1"]).is_empty(), "three seconds only");
    assert!(b.at(9, BootstrapInput::LookupFailed).is_empty(), "no answer is no proof that it stayed the same");
    assert_eq!(b.answer(9, &["a:1", "b:1"]), [BootstrapEffect::Join(vec![address("a:1")])]);
    let mut few = One::new("a:1#1", 2);
    few.answer(0, &["a:1"]);
    assert!(few.answer(60, &["a:1"]).is_empty(), "fewer than required, however stable");
}

#[test]
fn a_vote_is_for_the_first_of_the_own_list_and_for_one_at_a_time() {
    let mut c = One::new("c:1#3", 2);
    assert!(c.hear(0, "a:1#1", BootstrapMessage::Ask).is_empty(), "no list, no vote");
    c.answer(0, &["b:1", "c:1"]);
    c.answer(5, &["b:1", "c:1"]);
    assert!(c.hear(6, "a:1#1", BootstrapMessage::Ask).is_empty(), "its list begins with b");
    assert_eq!(c.hear(6, "b:1#2", BootstrapMessage::Ask), [send("b:1#2", BootstrapMessage::Vote { ballot: 1 })]);
    assert_eq!(
        c.hear(7, "b:1#2", BootstrapMessage::Ask),
        [send("b:1#2", BootstrapMessage::Vote { ballot: 1 })],
        "again"
    );
    // c's answer changes: c asks for its vote back, and votes for no other candidate before it has the vote.
    c.answer(10, &THREE);
    let effects = c.answer(15, &THREE);
    assert!(effects.contains(&send("b:1#2", BootstrapMessage::Withdraw { ballot: 1 })), "{effects:?}");
    assert!(c.hear(16, "a:1#1", BootstrapMessage::Ask).is_empty());
    c.hear(17, "b:1#2", BootstrapMessage::Withdrawn { ballot: 1 });
    assert_eq!(c.hear(18, "a:1#1", BootstrapMessage::Ask), [send("a:1#1", BootstrapMessage::Vote { ballot: 2 })]);
    // A new process at a's address: the old one is gone.
    assert_eq!(c.hear(19, "a:1#9", BootstrapMessage::Ask), [send("a:1#9", BootstrapMessage::Vote { ballot: 3 })]);
}

#[test]
fn a_founder_gives_no_vote_back_and_a_returned_one_is_never_used() {
    let mut a = One::new("a:1#1", 2);
    a.answer(0, &THREE);
    a.answer(5, &THREE);
    let back = [send("b:1#2", BootstrapMessage::Withdrawn { ballot: 1 })];
    assert_eq!(a.hear(6, "b:1#2", BootstrapMessage::Withdraw { ballot: 1 }), back);
    assert!(!founds(&a.hear(7, "b:1#2", BootstrapMessage::Vote { ballot: 1 })), "it came late");
    assert!(founds(&a.hear(8, "b:1#2", BootstrapMessage::Vote { ballot: 2 })));
    assert!(a.hear(9, "b:1#2", BootstrapMessage::Withdraw { ballot: 2 }).is_empty());
}

/// cluster M24: a withdrawn vote does not count, and withdrawing an older ballot does not affect a newer vote.
#[test]
fn a_vote_that_is_taken_back_counts_no_more() {
    let mut a = One::new("a:1#1", 3);
    a.answer(0, &THREE);
    a.answer(5, &THREE);
    a.hear(6, "b:1#2", BootstrapMessage::Vote { ballot: 2 });
    a.hear(6, "b:1#2", BootstrapMessage::Withdraw { ballot: 2 });
    assert!(!founds(&a.hear(7, "c:1#3", BootstrapMessage::Vote { ballot: 1 })), "b has taken its vote back");
    assert!(founds(&a.hear(8, "b:1#2", BootstrapMessage::Vote { ballot: 3 })));
    let mut a = One::new("a:1#1", 3);
    a.answer(0, &THREE);
    a.answer(5, &THREE);
    a.hear(6, "b:1#2", BootstrapMessage::Vote { ballot: 3 });
    a.hear(6, "b:1#2", BootstrapMessage::Withdraw { ballot: 2 });
    assert!(founds(&a.hear(7, "c:1#3", BootstrapMessage::Vote { ballot: 1 })), "b's newer vote stands");
}

#[test]
fn a_member_neither_votes_nor_looks_up_but_gives_votes_back() {
    let mut c = One::new("c:1#3", 2);
    c.answer(0, &THREE);
    c.answer(5, &THREE);
    c.at(6, BootstrapInput::Joined);
    assert!(c.hear(7, "a:1#1", BootstrapMessage::Ask).is_empty());
    assert_eq!(c.machine.next_deadline(), None);
    let back = [send("b:1#2", BootstrapMessage::Withdrawn { ballot: 4 })];
    assert_eq!(c.hear(8, "b:1#2", BootstrapMessage::Withdraw { ballot: 4 }), back);
}

#[test]
fn people_are_told_what_is_waited_for() {
    let mut a = One::new("a:1#1", 3);
    let told = |effects: Vec<BootstrapEffect>| match effects.last() {
        Some(BootstrapEffect::Log(LogLevel::Warn, text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert!(told(a.at(5, BootstrapInput::Tick)).contains("discovery found 0 nodes"));
    a.answer(5, &["a:1", "b:1", "c:1", "d:1", "e:1", "f:1"]);
    a.answer(10, &["a:1", "b:1", "c:1", "d:1", "e:1", "f:1"]);
    let text = told(a.at(11, BootstrapInput::Tick));
    assert!(text.contains("1 of 3 nodes") && text.contains("two clusters can come of this"), "{text}");
    assert_eq!(BootstrapSettings::new(0).validate().unwrap_err()[0].setting, "bootstrap.required_contacts");
    assert_eq!(BootstrapSettings::test(2).validate(), Ok(()));
}

/// cluster M24: another process that names this node's address neither gets the vote of a founder nor votes for it.
#[test]
fn a_process_that_names_this_address_has_no_vote() {
    let mut a = One::new("a:1#1", 3);
    a.answer(0, &THREE);
    a.answer(5, &THREE);
    assert!(a.hear(6, "a:1#9", BootstrapMessage::Ask).is_empty(), "it gets no vote");
    assert!(!founds(&a.hear(6, "a:1#9", BootstrapMessage::Vote { ballot: 1 })));
    assert!(!founds(&a.hear(6, "b:1#2", BootstrapMessage::Vote { ballot: 1 })), "two of three addresses");
    assert!(founds(&a.hear(7, "c:1#3", BootstrapMessage::Vote { ballot: 1 })));
}
