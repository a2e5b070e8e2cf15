//! The membership machines and singleton managers of whole clusters, on virtual time.

mod deaths;
mod downing;
mod islands;
mod joining;
mod lease;
mod membership;
mod moved;
mod partitions;
mod pauses;
mod singleton;
mod walks;
mod world;

/// The seeds of a test: a few in the ordinary run, as many as `GREYLAG_CLUSTER_SEEDS` says in a long
/// one, where a test is worth `full` of them at least:
/// `GREYLAG_CLUSTER_SEEDS=100 cargo test --release -p greylag-cluster --test simulation`.
fn seeds(full: u64) -> std::ops::Range<u64> {
    match std::env::var("GREYLAG_CLUSTER_SEEDS").ok().and_then(|seeds| seeds.parse::<u64>().ok()) {
        Some(seeds) => 0..seeds.max(full),
        None => 0..(full / 10).max(1),
    }
}
