//! Settings and numbers of a breaker, and the writes whose outcome is unknown. The behaviour of a breaker is in
//! `tests/breaker_protocol/*.txt`.

use crate::contract::breaker::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn defaults_are_those_of_the_specification() {
    let show = |settings: BreakerSettings| {
        assert_eq!(settings.validate(), Ok(()));
        (settings.max_failures.get(), settings.call_timeout, settings.reset_timeout.as_millis())
    };
    assert_eq!(show(BreakerSettings::default()), (10, 10 * SECOND, 500));
    assert_eq!(show(BreakerSettings::snapshots()), (5, 20 * SECOND, 500));
    for (call_timeout, reset_timeout, key) in
        [(Duration::ZERO, SECOND, "breaker.call_timeout"), (SECOND, Duration::ZERO, "breaker.reset_timeout")]
    {
        let none = BreakerSettings { call_timeout, reset_timeout, ..BreakerSettings::default() };
        assert!(none.validate().unwrap_err().to_string().contains(key));
    }
}

#[test]
fn a_write_is_in_doubt_from_its_lost_answer_to_the_next_known_one() {
    let [id, other] = ["Counter|1", "Counter|2"].map(|id| id.parse::<PersistenceId>().unwrap());
    let [writer, stranger] = [1, 2].map(WriterUuid::from_u128);
    let (mut in_doubt, now) = (InDoubtWrites::new(1), Instant::now());
    in_doubt.note(now, &id, writer, 7);
    assert!(in_doubt.is_in_doubt(now, &id, writer, 7));
    for (id, writer, number) in [(&other, writer, 7), (&id, stranger, 7), (&id, writer, 8)] {
        assert!(!in_doubt.is_in_doubt(now, id, writer, number));
    }
    assert!(!in_doubt.is_in_doubt(now + IN_DOUBT_RETENTION, &id, writer, 7), "no caller repeats a write that late");
    in_doubt.settle(&id);
    assert!(!in_doubt.is_in_doubt(now, &id, writer, 7));
    // Past the bound every write is in doubt, until the write that was not remembered has expired.
    in_doubt.note(now, &id, writer, 7);
    in_doubt.note(now, &other, writer, 1);
    assert!(in_doubt.is_in_doubt(now, &other, writer, 1) && in_doubt.is_in_doubt(now, &id, stranger, 9));
    let later = now + IN_DOUBT_RETENTION;
    assert!(!in_doubt.is_in_doubt(later, &id, stranger, 9));
    in_doubt.note(later, &other, writer, 2);
    assert!(in_doubt.is_in_doubt(later, &other, writer, 2), "what is past makes room");
}
