//! A seeded virtual network and data-driven transcripts, for machines that take inputs and yield effects.
//!
//! ```
//! use greylag_testkit::transcript;
//!
//! let script = "\
//! ## A counter remembers.
//!
//! add 2
//! ----
//! 2
//!
//! add 3
//! ----
//! 5
//! ".replace("##", "#");
//!
//! let mut total = 0;
//! let recorded = transcript::record(&script, |case| {
//!     total += case.positional(0).and_then(|n| n.parse::<i32>().ok()).expect("a number");
//!     total.to_string()
//! })?;
//! assert_eq!(recorded, script, "running the script records exactly what it says");
//! # Ok::<(), transcript::MalformedTranscript>(())
//! ```
//!
//! The crate knows nothing of Greylag's protocols: [`transcript`] hands lines of text to a closure, [`network`] moves
//! values between numbered nodes on virtual time, and [`linearizability`] checks a history of calls and answers. The
//! tests of a protocol give these their meaning.

#[cfg(feature = "certificates")]
pub mod certificates;
pub mod deadlines;
pub mod linearizability;
pub mod mutations;
pub mod network;
pub mod port;
#[cfg(all(unix, feature = "postgres"))]
pub mod postgres;
#[cfg(all(unix, feature = "small-disk"))]
pub mod small_disk;
pub mod stranger;
pub mod transcript;
pub mod uid;
