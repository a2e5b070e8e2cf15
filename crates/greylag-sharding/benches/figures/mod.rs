//! Whether figures are requested, and how they are printed.

#![allow(unreachable_pub, reason = "benchmarks include this file")]

/// Whether figures are requested. `cargo test` runs benchmarks too, to see that they work.
pub fn is_measured() -> bool {
    std::env::args().any(|arg| arg == "--bench")
}

/// Prints the median of several runs, with the smallest and the largest.
pub fn report(what: &str, runs: impl IntoIterator<Item = f64>) -> f64 {
    let mut runs: Vec<_> = runs.into_iter().collect();
    runs.sort_by(f64::total_cmp);
    let median = runs[runs.len() / 2];
    let digits = if median < 10.0 { 2 } else { 0 };
    let (count, least, most) = (runs.len(), runs[0], runs[runs.len() - 1]);
    println!("{what}: median {median:.digits$} (of {count}: {least:.digits$} to {most:.digits$})");
    median
}
