//! Encoding and decoding of the record of a daemon process, and of its manager's answers.

use greylag_core::DecodeError;
use prost::Message;

use crate::error::ReadError;
use crate::generated as proto;
use crate::machine::daemon::{Answer, DaemonRecord, NumberOfProcesses};

/// The bytes of a record.
pub fn encode_daemon_record(record: &DaemonRecord) -> Vec<u8> {
    let DaemonRecord { revision, count, previous, is_complete, started_ms } = *record;
    proto::DaemonRecord { revision, count, previous, complete: is_complete, started_ms }.encode_to_vec()
}

/// Reads what [`encode_daemon_record`] wrote, for a type with at most `most` workers.
///
/// # Errors
/// [`ReadError`], also for numbers that no manager can write.
pub fn decode_daemon_record(bytes: &[u8], most: u32) -> Result<DaemonRecord, ReadError> {
    const MANIFEST: &str = "greylag.sharding.daemon.record";
    let malformed = |reason: &dyn std::fmt::Display| DecodeError::malformed(MANIFEST, reason);
    let read = proto::DaemonRecord::decode(bytes).map_err(|error| malformed(&error))?;
    let proto::DaemonRecord { revision, count, previous, complete, started_ms } = read;
    let counts = 1..=most;
    if revision > DaemonRecord::MAX_REVISION || !counts.contains(&count) || !counts.contains(&previous) {
        return Err(malformed(&"a number is out of range").into());
    }
    Ok(DaemonRecord { revision, count, previous, is_complete: complete, started_ms })
}

/// The bytes of an answer.
pub fn encode_daemon_answer(answer: &Answer) -> Vec<u8> {
    use proto::daemon_answer::{Body, Busy, Changed, Number, OutOfRange, RescaleInProgress};
    let body = match *answer {
        Answer::Changed => Body::Changed(Changed {}),
        Answer::Number(NumberOfProcesses { count, started_ms, rescale_in_progress, revision }) => {
            Body::Number(Number { count, started_ms, rescale_in_progress, revision })
        }
        Answer::RescaleInProgress => Body::RescaleInProgress(RescaleInProgress {}),
        Answer::OutOfRange { most } => Body::OutOfRange(OutOfRange { most }),
        Answer::Busy => Body::Busy(Busy {}),
    };
    proto::DaemonAnswer { body: Some(body) }.encode_to_vec()
}

/// Reads what [`encode_daemon_answer`] wrote.
///
/// # Errors
/// [`DecodeError`], also for an answer of a later version.
pub fn decode_daemon_answer(manifest: &str, bytes: &[u8]) -> Result<Answer, DecodeError> {
    use proto::daemon_answer::{Body, Number};
    let read = proto::DaemonAnswer::decode(bytes).map_err(|error| DecodeError::malformed(manifest, error))?;
    Ok(match read.body.ok_or_else(|| DecodeError::malformed(manifest, "an unknown answer"))? {
        Body::Changed(_) => Answer::Changed,
        Body::Number(Number { count, started_ms, rescale_in_progress, revision }) => {
            Answer::Number(NumberOfProcesses { count, started_ms, rescale_in_progress, revision })
        }
        Body::RescaleInProgress(_) => Answer::RescaleInProgress,
        Body::OutOfRange(out_of_range) => Answer::OutOfRange { most: out_of_range.most },
        Body::Busy(_) => Answer::Busy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_numbers_out_of_range_are_refused() {
        let good = DaemonRecord { revision: 3, count: 4, previous: 2, is_complete: true, started_ms: 99 };
        assert_eq!(decode_daemon_record(&encode_daemon_record(&good), 4).unwrap(), good);
        let begun = DaemonRecord { is_complete: false, ..good };
        assert_eq!(decode_daemon_record(&encode_daemon_record(&begun), 4).unwrap(), begun);
        let wrong = [
            DaemonRecord { revision: DaemonRecord::MAX_REVISION + 1, ..good },
            DaemonRecord { revision: u64::MAX, ..good },
            DaemonRecord { count: 0, ..good },
            DaemonRecord { count: 5, ..good },
            DaemonRecord { previous: 0, ..good },
            DaemonRecord { previous: u32::MAX, ..good },
        ];
        for record in wrong {
            assert!(decode_daemon_record(&encode_daemon_record(&record), 4).is_err(), "{record:?}");
        }
        assert!(decode_daemon_record(b"nonsense", 4).is_err());
    }

    #[test]
    fn answers_come_back() {
        let number = NumberOfProcesses { count: 4, started_ms: 99, rescale_in_progress: true, revision: 7 };
        let answers = [
            Answer::Changed,
            Answer::Number(number),
            Answer::RescaleInProgress,
            Answer::OutOfRange { most: 12 },
            Answer::Busy,
        ];
        for answer in answers {
            assert_eq!(decode_daemon_answer("answer", &encode_daemon_answer(&answer)), Ok(answer));
        }
        assert!(decode_daemon_answer("answer", b"").is_err());
    }
}
