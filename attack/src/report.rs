//! The result of the attack: printed for people, and judged.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::probe::RoundTrips;
use crate::shop::{Node, Shop};
use crate::stranger::Tally;

pub(crate) fn say(line: &str) {
    // Ignore errors, since the reader may close the pipe; the exit code still tells the result.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Memory of one process over time, in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Course {
    address: String,
    /// The process hosts the journal, too.
    keeps_journal: bool,
    at_begin: u64,
    /// The first sample at least a minute after the attack began.
    after_a_minute: Option<u64>,
    last: u64,
    most: u64,
}

/// Samples the nodes' memory every second until dropped.
pub(crate) struct Memory {
    courses: Arc<Mutex<Vec<Course>>>,
    attacked_since: Arc<Mutex<Option<Instant>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
const MINUTE: Duration = Duration::from_secs(60);

impl Memory {
    pub(crate) fn watch(nodes: &[Node]) -> Self {
        let course = |node: &Node| Course {
            address: node.address.to_string(),
            keeps_journal: node.keeps_journal,
            ..Course::default()
        };
        let courses = Arc::new(Mutex::new(nodes.iter().map(course).collect::<Vec<_>>()));
        let attacked_since = Arc::new(Mutex::new(None::<Instant>));
        let (kept, since, pids) =
            (courses.clone(), attacked_since.clone(), nodes.iter().map(|node| node.pid).collect::<Vec<_>>());
        let task = tokio::spawn(async move {
            loop {
                let attacked_for = since.lock().expect(NO_PANIC).map(|since| since.elapsed());
                for (pid, course) in pids.iter().zip(kept.lock().expect(NO_PANIC).iter_mut()) {
                    // Keep the last figure of a process that has ended.
                    let Some(resident) = resident(*pid) else { continue };
                    match attacked_for {
                        None => course.at_begin = resident,
                        Some(time) if time >= MINUTE && course.after_a_minute.is_none() => {
                            course.after_a_minute = Some(resident);
                        }
                        Some(_) => {}
                    }
                    course.last = resident;
                    course.most = course.most.max(resident);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        Self { courses, attacked_since, task }
    }

    pub(crate) fn attack_begins(&self) {
        *self.attacked_since.lock().expect(NO_PANIC) = Some(Instant::now());
    }

    pub(crate) fn results(&self) -> Vec<Course> {
        self.courses.lock().expect(NO_PANIC).clone()
    }
}

/// Resident memory of a process in bytes; `None` once the process has ended.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// The measurements by which the run is judged.
pub(crate) struct Report {
    pub(crate) probes: RoundTrips,
    pub(crate) memory: Vec<Course>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) accusations: Vec<String>,
}

/// The value at the given percentile of sorted durations; zero if there are none.
fn percentile(sorted: &[Duration], of_hundred: usize) -> Duration {
    sorted.get((sorted.len() * of_hundred / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

impl Report {
    pub(crate) fn tell(&self, shop: &Shop) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tally = &self.tally;
        say(&format!("nodes attacked            {}", shop.nodes.len()));
        say(&format!(
            "connections by strangers  {}, of which refused {}",
            count(&tally.connections),
            count(&tally.refused)
        ));
        say(&format!("names claimed             {}", count(&tally.names)));
        say(&format!("messages by strangers     {}", count(&tally.by_strangers)));
        say(&format!("messages by the member    {}", count(&tally.by_member)));
        say(&format!(
            "admin calls answered      {}, turned away {}",
            count(&tally.answered),
            count(&tally.turned_away)
        ));
        for (reason, dropped) in tally.dropped.lock().expect(NO_PANIC).iter() {
            say(&format!("dropped by the nodes      {dropped:>10}  {reason}"));
        }
        for (name, times) in [("quiet", &self.probes.quiet), ("under attack", &self.probes.attacked)] {
            let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
            say(&format!(
                "heartbeats {name:<14} p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms, of {}",
                ms(percentile(times, 50)),
                ms(percentile(times, 99)),
                ms(times.last().copied().unwrap_or_default()),
                times.len()
            ));
        }
        say(&format!("heartbeats unanswered     {}", self.probes.unanswered));
        for course in &self.memory {
            let mb = |bytes: u64| bytes / (1 << 20);
            let later = course.after_a_minute.map_or("-".to_owned(), |bytes| mb(bytes).to_string());
            say(&format!(
                "memory of {:<20} {} MiB as the attack began, {later} after a minute, {} at the end, {} at most",
                course.address,
                mb(course.at_begin),
                mb(course.last),
                mb(course.most)
            ));
        }
        self.accusations.iter().for_each(|accusation| say(accusation));
    }

    /// # Errors
    /// All violated conditions, in one text.
    pub(crate) fn judge(&self, storefront: &str, lenient: bool) -> Result<(), Failure> {
        let mut broken = Vec::new();
        if !storefront.lines().any(|line| line == "match") {
            broken.push("the storefront's report does not end in a match".to_owned());
        }
        let refused = self.tally.dropped.lock().expect(NO_PANIC).get("NotAMember").copied().unwrap_or_default();
        if refused == 0 {
            broken.push("no node has counted a message of a stranger as NotAMember".to_owned());
        }
        if self.probes.attacked.is_empty() {
            broken.push("no heartbeat was answered under attack".to_owned());
        }
        if !lenient {
            broken.extend(self.accusations.iter().cloned());
            let (quiet, attacked) = (percentile(&self.probes.quiet, 99), percentile(&self.probes.attacked, 99));
            if attacked > 2 * quiet {
                broken.push(format!("heartbeats took {attacked:?} under attack (p99), more than twice {quiet:?}"));
            }
            // Skip the storefront's own node: it hosts the journal, whose cache grows with the purchases even without
            // an attack.
            for course in self.memory.iter().filter(|course| !course.keeps_journal) {
                let grown = course.after_a_minute.is_some_and(|then| course.last > then + then / 5 + (16 << 20));
                if grown {
                    broken.push(format!("the memory of {} went on growing after the first minute", course.address));
                }
            }
        }
        if broken.is_empty() { Ok(()) } else { Err(broken.join("; ").into()) }
    }
}
