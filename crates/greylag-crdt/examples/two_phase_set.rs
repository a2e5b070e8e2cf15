//! A replicated type of your own, in both forms: written by hand, and derived.
//!
//! A two-phase set is two sets that only grow: the added elements, and the removed ones. Its elements are those of the
//! first set that are not in the second, so a removed element can never return. The form written by hand supplies a
//! merge and its bytes, and travels as a full state; the derived form has the deltas of its parts as well. Source:
//! ddata A1, A2.
//!
//! `cargo run -p greylag-crdt --example two_phase_set`

use std::error::Error;
use std::io::Write as _;

use greylag_crdt::{
    Change, DecodeError, Decoder, Encoder, GSet, Lineage, MergeError, ReplicatedData, State, StateData, TypeTag,
};

/// The state-only form; replicate it as `State<ByHand>`.
#[derive(Clone, Debug, PartialEq)]
struct ByHand {
    added: GSet<String>,
    removed: GSet<String>,
}

impl StateData for ByHand {
    const TAG: TypeTag = TypeTag::new("example.two-phase-set/1");

    fn zero() -> Self {
        Self { added: GSet::new(), removed: GSet::new() }
    }

    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        self.added.merge(&other.added)?;
        self.removed.merge(&other.removed)?;
        Ok(())
    }

    fn encode(&self, out: &mut Encoder) {
        self.added.encode(out);
        self.removed.encode(out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { added: GSet::decode(inp)?, removed: GSet::decode(inp)? })
    }
}

/// The derived form: its deltas are those of its parts.
#[derive(Clone, Debug, PartialEq, ReplicatedData)]
#[crdt(tag = "example.two-phase-set-with-deltas/1")]
struct Derived {
    added: GSet<String>,
    removed: GSet<String>,
}

impl Derived {
    fn add(&mut self, element: &str) {
        self.added.add(element.to_owned());
    }

    fn remove(&mut self, element: &str) {
        if self.added.contains(element) {
            self.removed.add(element.to_owned());
        }
    }

    fn elements(&self) -> Vec<&str> {
        self.added.iter().filter(|element| !self.removed.contains(*element)).map(String::as_str).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();

    let mut here = State::<ByHand>::zero();
    here.added.add("goose".to_owned());
    let mut there = here.clone();
    there.removed.add("goose".to_owned());
    here.added.add("swan".to_owned());
    here.merge(&there)?;
    assert!(here.removed.contains("goose"));
    writeln!(out, "by hand: {} added, {} removed", here.added.len(), here.removed.len())?;

    let (mut here, mut there) = (Derived::zero(), Derived::zero());
    // As a replicator does around an update: collect what the update did, and send only that.
    here.begin_change(Lineage(1));
    here.add("goose");
    here.add("swan");
    here.remove("goose");
    let Change::Delta(delta) = here.take_change(Lineage(1)) else { return Err("an update has a delta".into()) };
    there.add("goose");
    there.merge_delta(&delta)?;
    assert_eq!(there.elements(), ["swan"], "removed for good, although it was added here too");
    assert_eq!(there, here);
    writeln!(out, "derived: {:?}, by a delta of {} bytes", there.elements(), Derived::delta_to_bytes(&delta).len())?;
    Ok(())
}
