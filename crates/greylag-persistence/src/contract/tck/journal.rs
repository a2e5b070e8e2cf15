//! The journal cases, by their numbers in persistence §4.5.

use super::factories::JournalFactory;
use super::harness::{Flags, Report, cases};
use super::{journal_fence as fence, journal_read as read, journal_write as write};

/// Runs every journal case against a fresh journal of `factory`, in the order of their numbers.
pub async fn journal(factory: &impl JournalFactory, flags: Flags) -> Report {
    let journal = &factory.open().await;
    let mut report = Report::default();
    cases! {report, &flags;
        "01 replay all" => read::replay_all(journal);
        "02 lower bound" => read::lower_bound(journal);
        "03 upper bound" => read::upper_bound(journal);
        "04 count limit" => read::count_limit(journal);
        "05 both bounds" => read::both_bounds(journal);
        "06 both bounds and limit" => read::both_bounds_and_limit(journal);
        "07 from equals to" => read::from_equals_to(journal);
        "08 limit 1" => read::limit_one(journal);
        "09 limit 0" => read::limit_zero(journal);
        "10 from beyond to" => read::from_beyond_to(journal);
        "11 unknown id" => read::unknown_id(journal);
        "12 delete prefix" => read::delete_prefix(journal);
        "13 highest kept after partial delete" => read::highest_kept_after_partial_delete(journal);
        "14 highest kept after delete all" => read::highest_kept_after_delete_all(journal);
        "15 from the last deleted" => read::from_last_deleted(journal);
        "16 to inside the deleted prefix" => read::to_inside_deleted(journal);
        "17 to the last deleted" => read::to_last_deleted(journal);
        "18 from the first survivor" => read::from_first_survivor(journal);
        "19 window spans the deleted prefix" => read::window_spans_deleted(journal);
        "20 atomic append up to the limit" => write::atomic_append(journal);
        "21 taken number" => write::taken_number(journal);
        "22 number beyond the next" => write::number_beyond_next(journal);
        "23 claim fences append and delete" => fence::claim_fences(journal);
        "24 claim returns an append in flight" => fence::claim_sees_append_in_flight(journal);
        "25 concurrent claims" => fence::concurrent_claims(journal);
        "26 retry of an identical append" => fence::identical_retry(journal);
        "27 stale number below deleted_to" => fence::stale_number_below_deleted(journal);
        "28 payload sizes" => write::payload_sizes(journal, &flags);
        "29 fields come back" => write::fields_come_back(journal);
        "30 filtered record" => write::filtered_record(journal);
        "31 ids that are prefixes, non-ASCII, 255 bytes" => write::odd_ids(journal);
        "32 timestamps rise" => write::timestamps_rise(factory, journal);
        "33 pages chain" => read::pages_chain(journal);
        "34 concurrent ids stay contiguous" => write::concurrent_ids(journal, &flags);
        "35 a rejected append leaves the others" => write::rejected_leaves_others(journal);
        "36 cancelled append" => fence::cancelled_append(journal);
        "37 corrupted byte" => write::corrupted_byte(factory, journal);
        "38 health and close" => write::health_and_close(factory);
        "39 advance" => fence::advance(journal);
        "40 delete is idempotent and monotone" => read::delete_idempotent(journal);
        "41 flood of stale appends" => fence::flood_of_stale_appends(journal);
        "42 generations" => fence::generations(journal);
        "43 retry after an unanswered try" => fence::unanswered_try(factory, journal);
        "44 repeated claim" => fence::repeated_claim(journal);
        "45 retry with other content" => fence::retry_with_other_content(journal);
        "46 claim under an epoch not stored" => fence::claim_under_other_epoch(journal);
    }
    report
}
