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

/// The seeds of a test: `usual` many in the ordinary run, at least as many as `GREYLAG_CLUSTER_SEEDS` says in a long
/// one: `cargo xtask sim-cluster` runs the hundred that cluster §9 requires.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("GREYLAG_CLUSTER_SEEDS").ok().and_then(|seeds| seeds.parse::<u64>().ok());
    0..asked.unwrap_or(0).max(usual)
}
