//! Errors of a program that was built without a feature that the command needs.

use crate::common::{code, output_text, program};

const SLED: &str = "journal-sled";
const POSTGRES: &str = "journal-postgres";

fn has(feature: &str) -> bool {
    let has_sled = cfg!(feature = "journal-sled");
    let has_postgres = cfg!(feature = "journal-postgres");
    if feature == SLED { has_sled } else { has_postgres }
}

/// Each command on a store, with the feature that it needs. No store exists, so a program that has the feature fails,
/// too, but with another code or text.
#[tokio::test]
async fn a_command_whose_feature_is_missing_names_it_and_how_to_get_it() {
    let nowhere = "sled:/nowhere/at/all";
    let database = "postgres://127.0.0.1:1/x?connect_timeout=1";
    for (arguments, needs) in [
        (&["inspect", nowhere][..], &[SLED][..]),
        (&["replay", nowhere, "Account|1"], &[SLED]),
        (&["verify", nowhere], &[SLED]),
        (&["inspect", database], &[POSTGRES]),
        (&["verify", database], &[POSTGRES]),
        (&["verify", nowhere, database], &[SLED, POSTGRES]),
        (&["copy", nowhere, database], &[SLED, POSTGRES]),
        (&["copy", database, nowhere], &[POSTGRES, SLED]),
        (&["health", "127.0.0.1:1", "--timeout", "100ms"], &[SLED]),
        (&["serve", "--dir", "/proc/nowhere", "--listen", "127.0.0.1:0"], &[SLED]),
    ] {
        let output = program().arg("journal").args(arguments).output().await.expect("it starts");
        let output_text = output_text(&output);
        match needs.iter().find(|feature| !has(feature)) {
            Some(missing) => {
                assert_eq!(code(&output), 2, "{arguments:?}: {output_text}");
                assert!(
                    output_text.contains(&format!("without the feature {missing}")),
                    "{arguments:?}: {output_text}"
                );
                assert!(output_text.contains(&format!("--features {missing}")), "{arguments:?}: {output_text}");
            }
            None => {
                assert_eq!(code(&output), 3, "{arguments:?}: {output_text}");
                assert!(!output_text.contains("without the feature"), "{arguments:?}: {output_text}");
            }
        }
    }
    // An unknown kind of store is refused as such, with any features.
    let output = program().args(["journal", "inspect", "mysql://h/x"]).output().await.expect("it starts");
    assert!(code(&output) == 2 && output_text(&output).contains("sled:/path/to/directory"), "{}", output_text(&output));
}

/// Members and shards need no feature, so the only error is that no node answers.
#[tokio::test]
async fn members_need_no_feature() {
    let output = program().args(["--address", "127.0.0.1:1", "members"]).output().await.expect("it starts");
    assert_eq!(code(&output), 3, "{}", output_text(&output));
}
