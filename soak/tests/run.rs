//! A short soak, as part of the ordinary tests.

use std::process::Command;

/// Cluster C7, T5, T6, T39: saturated data lanes and handlers that block make no node look dead.
#[test]
fn a_short_flood_makes_no_member_unreachable() {
    let soak = Command::new(env!("CARGO_BIN_EXE_greylag-soak"))
        .args(["--seconds", "3", "--nodes", "3", "--stall-seconds", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&soak.stdout);
    assert!(soak.status.success(), "{said}\n{}", String::from_utf8_lossy(&soak.stderr));
    assert!(said.contains("no member was taken for unreachable"), "{said}");
}
