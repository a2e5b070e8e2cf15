//! The result of the run, compared with the totals computed from the file.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::purchases::Totals;

/// The results by which the run is judged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// The totals that each customer answered.
    pub(crate) answered: BTreeMap<u32, Totals>,
    /// The totals computed from the file.
    pub(crate) expected: BTreeMap<u32, Totals>,
    /// Count of bad lines that were left out.
    pub(crate) skipped_lines: u64,
    /// Count of events that the journal stored in this run.
    pub(crate) newly_applied: u64,
    /// Count of frames that were sent again.
    pub(crate) sent_again: u64,
    /// Count of purchases that were delivered again after their customer had applied them.
    pub(crate) suppressed: u64,
    /// Count of shard moves from one node to another.
    pub(crate) shards_moved: u64,
    /// The longest time in which the selling process waited for confirmations and got none.
    pub(crate) longest_silence: Duration,
    /// The longest time from sending a purchase to its confirmation.
    pub(crate) slowest_purchase: Duration,
    /// The time from the first purchase sent to the last one confirmed.
    pub(crate) elapsed: Duration,
    /// A sentence on the fault during the sale.
    pub(crate) incident: String,
}

impl Report {
    /// The customers whose answer differs from the file, with the expected and the answered totals.
    fn differences(&self) -> Vec<(u32, Totals, Totals)> {
        let customers = self.expected.keys().chain(self.answered.keys()).copied();
        let mut differences: Vec<_> = customers
            .map(|customer| {
                let of = |totals: &BTreeMap<u32, Totals>| totals.get(&customer).copied().unwrap_or_default();
                (customer, of(&self.expected), of(&self.answered))
            })
            .filter(|(_, expected, answered)| expected != answered)
            .collect();
        differences.dedup();
        differences
    }

    /// Whether the answers of all customers agree with the file.
    pub(crate) fn matches(&self) -> bool {
        self.differences().is_empty()
    }

    fn ten_best(&self) -> Vec<(u32, Totals)> {
        let mut best: Vec<_> = self.answered.iter().map(|(customer, totals)| (*customer, *totals)).collect();
        best.sort_by_key(|(customer, totals)| (std::cmp::Reverse(totals.cents), *customer));
        best.truncate(10);
        best
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Totals::default();
        self.answered.values().for_each(|totals| all.absorb(*totals));
        let line = |f: &mut fmt::Formatter<'_>, name: &str, value: String| writeln!(f, "  {name:<24}{value:>16}");
        writeln!(f, "\nwhat the customers say")?;
        line(f, "customers", thousands(self.answered.len() as u64))?;
        line(f, "purchases", thousands(all.purchases))?;
        line(f, "units", thousands(all.units))?;
        line(f, "dollars", dollars(all.cents))?;
        writeln!(f, "\nthe ten best customers")?;
        for (customer, totals) in self.ten_best() {
            writeln!(
                f,
                "  customer {customer:<8}{:>5} purchases {:>6} units {:>14} dollars",
                totals.purchases,
                totals.units,
                dollars(totals.cents)
            )?;
        }
        writeln!(f, "\nhow it went")?;
        line(f, "newly applied", thousands(self.newly_applied))?;
        if self.newly_applied == 0 && all.purchases > 0 {
            writeln!(f, "  nothing new was applied: every purchase of this file was there already")?;
        }
        if self.skipped_lines > 0 {
            line(f, "bad lines left out", thousands(self.skipped_lines))?;
        }
        line(f, "sent again", thousands(self.sent_again))?;
        line(f, "suppressed", thousands(self.suppressed))?;
        line(f, "shards moved", thousands(self.shards_moved))?;
        line(f, "longest silence", format!("{:.2} s", self.longest_silence.as_secs_f64()))?;
        line(f, "slowest purchase", format!("{:.2} s", self.slowest_purchase.as_secs_f64()))?;
        line(f, "elapsed", format!("{:.2} s", self.elapsed.as_secs_f64()))?;
        let rate = all.purchases as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON);
        line(f, "throughput", format!("{} /s", thousands(rate as u64)))?;
        writeln!(f, "  {}", self.incident)?;
        let differences = self.differences();
        if differences.is_empty() {
            return writeln!(f, "\nmatch");
        }
        writeln!(f, "\nDIFFERENT for {} customers:", differences.len())?;
        for (customer, expected, answered) in differences.iter().take(20) {
            writeln!(f, "  customer {customer}: the file says {expected:?}, the customer says {answered:?}")?;
        }
        Ok(())
    }
}

/// Formats cents as dollars with separators: 250031563 as `2,500,315.63`.
fn dollars(cents: u64) -> String {
    format!("{}.{:02}", thousands(cents / 100), cents % 100)
}

/// Formats 23570 as `23,570`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(cents: u64) -> Totals {
        Totals { purchases: 1, units: 2, cents }
    }

    #[test]
    fn a_missing_a_foreign_and_a_wrong_customer_are_differences() {
        let expected = BTreeMap::from([(1, totals(10)), (2, totals(20)), (3, totals(30))]);
        let same = Report { expected: expected.clone(), answered: expected.clone(), ..Report::default() };
        assert!(same.matches() && same.to_string().ends_with("match\n"));
        for answered in [
            BTreeMap::from([(1, totals(10)), (2, totals(20))]),
            BTreeMap::from([(1, totals(10)), (2, totals(20)), (3, totals(30)), (4, totals(1))]),
            BTreeMap::from([(1, totals(10)), (2, totals(21)), (3, totals(30))]),
        ] {
            let report = Report { expected: expected.clone(), answered, ..Report::default() };
            assert!(!report.matches());
            assert!(report.to_string().contains("DIFFERENT for 1 customers"));
        }
    }

    #[test]
    fn money_and_counts_are_written_to_the_cent() {
        assert_eq!(dollars(250_031_563), "2,500,315.63");
        assert_eq!(dollars(5), "0.05");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(999), "999");
    }
}
