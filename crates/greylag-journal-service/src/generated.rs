//! Made by `cargo xtask proto` from `proto/journal_service.proto`.

include!("generated/greylag.journal.v1.rs");
