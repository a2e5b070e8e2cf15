//! The resident memory of processes over time.

const MIB: u64 = 1 << 20;
/// Growth in bytes that is attributed to the allocator.
const SLACK: u64 = 4 * MIB;

/// Resident memory of several processes (by process id), sampled together.
#[derive(Debug, Default)]
pub(crate) struct Courses(Vec<(u32, Vec<u64>)>);

impl Courses {
    pub(crate) fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        Self(pids.into_iter().map(|pid| (pid, Vec::new())).collect())
    }

    /// Samples the memory of all processes. A process that has ended gets no sample, which `wrongs` reports.
    pub(crate) fn look(&mut self) {
        for (pid, course) in &mut self.0 {
            course.extend(resident(*pid));
        }
    }

    /// The largest growth of any process in MiB: highest sample of the last quarter less highest one of the second
    /// quarter.
    pub(crate) fn growth_mib(&self) -> f64 {
        self.0.iter().map(|(_, course)| growth(course)).max().unwrap_or(0) as f64 / MIB as f64
    }

    /// The highest sample of the first process, in MiB.
    pub(crate) fn most_of_first_mib(&self) -> f64 {
        self.0.first().and_then(|(_, course)| course.iter().max()).map_or(0.0, |most| *most as f64 / MIB as f64)
    }

    /// Processes that grew or ended, as sentences.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        let looks = self.0.iter().map(|(_, course)| course.len()).max().unwrap_or(0);
        let told = |(pid, course): &(u32, Vec<u64>)| {
            let growth = growth(course);
            if course.len() < looks || looks < 4 {
                Some(format!("process {pid} was seen {} times of {looks}", course.len()))
            } else if growth > SLACK {
                let course: Vec<u64> = course.iter().map(|bytes| bytes / MIB).collect();
                Some(format!("process {pid} grew by {} MiB: {course:?}", growth / MIB))
            } else {
                None
            }
        };
        self.0.iter().filter_map(told).collect()
    }
}

fn growth(course: &[u64]) -> u64 {
    let quarter = course.len() / 4;
    let most = |from: usize, to: usize| course[from..to].iter().max().copied().unwrap_or(0);
    most(course.len() - quarter, course.len()).saturating_sub(most(quarter, 2 * quarter))
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_and_a_level_is_not() {
        let course = |figures: [u64; 8]| Courses(vec![(1, figures.map(|mib| mib * MIB).into())]);
        assert_eq!(course([1, 5, 30, 31, 30, 31, 32, 31]).wrongs(), [""; 0]);
        let grown = course([1, 5, 30, 31, 34, 35, 36, 37]);
        assert_eq!((grown.growth_mib(), grown.most_of_first_mib()), (6.0, 37.0));
        assert_eq!(grown.wrongs(), ["process 1 grew by 6 MiB: [1, 5, 30, 31, 34, 35, 36, 37]"]);
    }

    #[test]
    fn a_process_that_ended_or_was_hardly_seen_is_told() {
        let level = vec![MIB; 8];
        let ended = Courses(vec![(1, level.clone()), (2, level[..5].to_vec())]);
        assert_eq!(ended.wrongs(), ["process 2 was seen 5 times of 8"]);
        assert_eq!(Courses(vec![(1, Vec::new())]).wrongs(), ["process 1 was seen 0 times of 0"]);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident(std::process::id()).expect("Linux") > MIB);
    }
}
