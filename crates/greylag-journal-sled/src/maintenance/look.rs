//! Reads every record of an open store, and compares them with what commits and the guard name.

use std::path::Path;

use greylag_store_sled::{Batch, Reader};

use super::failure::Failure;
use super::findings::Verification;
use super::survey::{Found, Survey};
use crate::planner::check_format;
use crate::rows::records::Verified;
use crate::verification;

/// The last commit that the tail guard names.
pub(super) fn guarded(path: &Path) -> Result<Option<u64>, Failure> {
    let file = path.join(greylag_store_sled::GUARD_FILE);
    greylag_store_sled::guarded(path).map_err(|source| Failure::File { path: file, source })
}

/// Result of [`look`].
pub(super) struct Looked {
    pub(super) found: Verification,
    /// Up to which commit everything is there; `None` if anything is missing.
    pub(super) verified: Option<Verified>,
    /// The ordinal after all events and changes that commits name.
    pub(super) next_ordinal: u64,
}

/// Reads everything, compares it with what commits and the guard name, and passes each thing to `visit`, too.
pub(super) fn look(reader: Reader, guard: Option<u64>, visit: &mut dyn FnMut(&Found<'_>)) -> Looked {
    let mut found = Verification::default();
    let verified = verification::verify(Verified::default(), u64::MAX, &reader);
    found.tell(verified.as_ref().err().map(ToString::to_string));
    found.tell(check_format(&reader, &mut Batch::default()).err().map(|error| error.to_string()));
    let survey = Survey::new(reader.clone());
    found.tell(survey.commits.damage(guard, &reader));
    found.counts.commits = survey.commits.last - survey.commits.gaps.min(survey.commits.last);
    found.missing_commits = survey.commits.missing(guard);
    let next_ordinal = survey.commits.next_ordinal;
    survey.walk(&mut |thing| {
        found.note(&thing);
        visit(&thing);
    });
    let gone: Vec<String> = found.missing.iter().map(ToString::to_string).collect();
    found.tell(gone);
    Looked { found, verified: verified.ok(), next_ordinal }
}
