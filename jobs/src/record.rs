//! The records that workers write about their jobs.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock, which all its processes share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// A step of a job at a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Begun,
    Done,
}

/// One record. A pipe takes a record as a whole or not at all, so that a killed worker leaves no partial one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) job: u64,
    pub(crate) what: What,
    pub(crate) at: u64,
}

impl Record {
    /// Bytes of a record.
    pub(crate) const LEN: usize = 17;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = u8::from(self.what == What::Done);
        bytes[1..9].copy_from_slice(&self.job.to_le_bytes());
        bytes[9..].copy_from_slice(&self.at.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[from + index]));
        let what = if bytes[0] == 0 { What::Begun } else { What::Done };
        Self { job: number(1), what, at: number(9) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back() {
        for what in [What::Begun, What::Done] {
            let record = Record { job: 0x0102_0304_0506_0708, what, at: now() };
            assert_eq!(Record::from_bytes(&record.to_bytes()), record);
        }
    }
}
