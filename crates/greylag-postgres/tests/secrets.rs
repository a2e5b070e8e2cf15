//! Files with secrets that others can read.

#[path = "../../greylag-transport/tests/suite/common/logs.rs"]
mod logs;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use greylag_postgres::Database;

/// persistence 74: a password file that others can read is a warning that names it.
#[test]
fn scenario_74_a_password_file_that_others_can_read_is_named() {
    logs::keep();
    let directory = tempfile::tempdir().unwrap();
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        let file = directory.path().join(name);
        std::fs::write(&file, "secret").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        Database::parse("host=localhost user=shop").unwrap().with_password_file(&file).unwrap();
        let named = file.display().to_string();
        assert_eq!(logs::has(&["WARN", "others can read", &named]), mode == 0o644, "{name}");
        assert!(!logs::has(&["secret\""]), "the secret itself is not logged");
    }
}
