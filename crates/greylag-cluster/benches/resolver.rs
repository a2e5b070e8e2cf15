//! The long forms of the resolver's tests: scenario 69 with every view of five members, and 30,000
//! random partitions, with the figures of every strategy.
//!
//! `cargo bench -p greylag-cluster --bench resolver`

#[path = "../tests/resolver/exhaustive.rs"]
mod exhaustive;
#[path = "../tests/resolver/random.rs"]
mod random;
#[path = "../tests/resolver/sides.rs"]
mod sides;

use std::io::Write as _;
use std::time::Instant;

use random::Views;

fn print_line(line: &str) {
    let _nobody_reads = writeln!(std::io::stdout(), "{line}");
}

fn main() {
    every_view(5);
    for views in [Views::Same, Views::OneStepApart, Views::StaleRecords] {
        random_partitions(30_000, views);
    }
}

fn every_view(members: usize) {
    let begun = Instant::now();
    let strategies = exhaustive::strategies(members);
    let codes: Vec<usize> = (0..exhaustive::views(members)).collect();
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut counts = vec![exhaustive::Count::default(); strategies.len()];
    std::thread::scope(|scope| {
        let chunks = codes.chunks(codes.len().div_ceil(workers));
        let check = |chunk: &[usize]| {
            let mut counts = vec![exhaustive::Count::default(); strategies.len()];
            for code in chunk {
                exhaustive::check(members, *code, &strategies, &mut counts).expect("one side at most survives");
            }
            counts
        };
        let running: Vec<_> = chunks.map(|chunk| scope.spawn(move || check(chunk))).collect();
        for worker in running {
            for (sum, part) in counts.iter_mut().zip(worker.join().expect("no view has two survivors")) {
                sum.pairs += part.pairs;
                sum.both += part.both;
                sum.none += part.none;
                sum.both_after_action += part.both_after_action;
            }
        }
    });
    let took = begun.elapsed().as_secs_f64();
    print_line(&format!("every view of {members} members, every cut, views at most one step apart ({took:.0} s):"));
    for (strategy, count) in strategies.iter().zip(&counts) {
        print_line(&format!(
            "  {:<40} {:>9} pairs: both live {}, none {}; a whole action of the leader apart, both live {}",
            strategy.to_string(),
            count.pairs,
            count.both,
            count.none,
            count.both_after_action
        ));
    }
}

fn random_partitions(seeds: u64, views: Views) {
    let begun = Instant::now();
    let counts = random::count(0..seeds, views);
    let took = begun.elapsed().as_secs_f64();
    print_line(&format!("{seeds} random partitions, views {views:?} ({took:.0} s):"));
    for (name, count) in counts {
        let random::Count { several, one, none, .. } = count;
        print_line(&format!("  {name:<40} several live {several}, one {one}, none {none}"));
        assert_eq!(several, 0, "{name} promises one side");
    }
}
