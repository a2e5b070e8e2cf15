//! The history of each job, checked against the guarantees of delivery.

use crate::record::{Record, What};

/// Stands for a step that has not happened.
const NEVER: u64 = u64::MAX;
/// The most job numbers that a sentence about violations lists.
const NAMED: usize = 5;

/// The counts and times of one job.
#[derive(Debug, Clone, Copy)]
struct Job {
    begun: u32,
    last_begun_at: u64,
    first_done_at: u64,
    confirmed_at: u64,
}

/// All jobs, indexed by number from 0. The memory is allocated at the start, so that it does not grow in the run.
#[derive(Debug)]
pub(crate) struct Ledger {
    jobs: Vec<Job>,
    confirmed: u64,
    unknown: u64,
}

impl Ledger {
    /// A ledger for `jobs` jobs.
    pub(crate) fn of(jobs: u64) -> Self {
        let job = Job { begun: 0, last_begun_at: 0, first_done_at: NEVER, confirmed_at: NEVER };
        Self { jobs: vec![job; usize::try_from(jobs).expect("jobs fit into memory")], confirmed: 0, unknown: 0 }
    }

    /// Enters one record of a worker.
    pub(crate) fn enter(&mut self, record: Record) {
        let Some(job) = usize::try_from(record.job).ok().and_then(|job| self.jobs.get_mut(job)) else {
            self.unknown += 1;
            return;
        };
        match record.what {
            What::Begun => {
                job.begun += 1;
                job.last_begun_at = job.last_begun_at.max(record.at);
            }
            What::Done => job.first_done_at = job.first_done_at.min(record.at),
        }
    }

    /// Notes that the producer learned of the job's confirmation at time `at`.
    pub(crate) fn confirm(&mut self, job: u64, at: u64) {
        let job = &mut self.jobs[usize::try_from(job).expect("it was sent")];
        self.confirmed += u64::from(job.confirmed_at == NEVER);
        job.confirmed_at = job.confirmed_at.min(at);
    }

    /// Count of confirmed jobs.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Count of begins beyond the first, over all jobs.
    pub(crate) fn repeats(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.begun.saturating_sub(1))).sum()
    }

    /// Violated guarantees among the first `sent` jobs, as sentences.
    pub(crate) fn wrongs(&self, sent: u64) -> Vec<String> {
        let sent = usize::try_from(sent).map_or(self.jobs.len(), |sent| sent.min(self.jobs.len()));
        let (sent, unsent) = self.jobs.split_at(sent);
        let complaint = |what: &str, is_so: fn(&Job) -> bool| {
            let which: Vec<usize> = (0..).zip(sent).filter(|(_, job)| is_so(job)).map(|(number, _)| number).collect();
            (!which.is_empty()).then(|| format!("{} jobs {what}: {:?}", which.len(), &which[..which.len().min(NAMED)]))
        };
        let unasked = self.unknown + unsent.iter().map(|job| u64::from(job.begun)).sum::<u64>();
        let unasked = (unasked > 0).then(|| format!("{unasked} jobs were begun that were never sent"));
        [
            complaint("were never done", |job| job.first_done_at == NEVER),
            complaint("were never confirmed", |job| job.confirmed_at == NEVER),
            complaint("were confirmed before they were done", |job| job.confirmed_at < job.first_done_at),
            complaint("were begun again after they were confirmed", |job| job.confirmed_at < job.last_begun_at),
        ]
        .into_iter()
        .chain([unasked])
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The violations of one job that is begun and done at the given times, and confirmed at the last one.
    fn wrongs(begun: &[u64], done: &[u64], confirmed: Option<u64>) -> Vec<String> {
        let mut ledger = Ledger::of(1);
        begun.iter().for_each(|at| ledger.enter(Record { job: 0, what: What::Begun, at: *at }));
        done.iter().for_each(|at| ledger.enter(Record { job: 0, what: What::Done, at: *at }));
        confirmed.into_iter().for_each(|at| ledger.confirm(0, at));
        assert_eq!(ledger.confirmed(), u64::from(confirmed.is_some()));
        assert_eq!(ledger.repeats(), (begun.len() as u64).saturating_sub(1));
        ledger.wrongs(1)
    }

    #[test]
    fn a_job_that_is_done_and_then_confirmed_is_right_however_often_it_was_begun_before() {
        assert_eq!(wrongs(&[1], &[2], Some(3)), [""; 0]);
        assert_eq!(wrongs(&[1, 4], &[5], Some(6)), [""; 0], "its first worker was killed");
        assert_eq!(wrongs(&[1, 4], &[2, 5], Some(6)), [""; 0], "its first worker was killed before it confirmed");
    }

    #[test]
    fn every_broken_promise_is_told() {
        assert_eq!(wrongs(&[1, 4], &[2], Some(3)), ["1 jobs were begun again after they were confirmed: [0]"]);
        assert_eq!(wrongs(&[1], &[4], Some(3)), ["1 jobs were confirmed before they were done: [0]"]);
        assert_eq!(wrongs(&[1], &[2], None), ["1 jobs were never confirmed: [0]"]);
        let undone = ["1 jobs were never done: [0]", "1 jobs were confirmed before they were done: [0]"];
        assert_eq!(wrongs(&[1], &[], Some(3)), undone);
        let mut ledger = Ledger::of(2);
        ledger.enter(Record { job: 1, what: What::Begun, at: 1 });
        ledger.enter(Record { job: 2, what: What::Begun, at: 1 });
        assert_eq!(ledger.wrongs(0), ["2 jobs were begun that were never sent"]);
    }
}
