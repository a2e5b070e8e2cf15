//! A small file system of a test's own, which no other process sees and which is gone after the test.
//!
//! A mount needs a namespace of its own, and that needs a process: the test starts its own binary once more, with one
//! test only, the child, which runs on the disk.
//!
//! ```no_run
//! use greylag_testkit::small_disk::{self, SmallDisk};
//!
//! // Not a test of its own.
//! # mod hidden { use super::*;
//! #[test]
//! fn child_on_a_small_disk() {
//!     let Some(disk) = SmallDisk::mounted() else { return };
//!     disk.fill(1 << 20);
//!     std::fs::write(disk.path().join("big"), vec![0; 2 << 20]).unwrap_err();
//!     disk.done();
//! }
//!
//! #[test]
//! fn a_full_disk_is_told() {
//!     small_disk::run("child_on_a_small_disk", 16);
//! }
//! # }
//! ```

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PATH_VARIABLE: &str = "GREYLAG_SMALL_DISK";
const DONE: &str = "small disk: done";

/// The disk that the parent mounted for this child.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// The disk, in the child; `None` if the test runs otherwise.
    pub fn mounted() -> Option<Self> {
        env::var_os(PATH_VARIABLE).map(|place| Self(place.into()))
    }

    /// The mount point. Every user may write there.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills the disk up to `spare` free bytes, until the returned file is removed.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn fill(&self, spare: u64) -> PathBuf {
        let filler = self.0.join("filler");
        let mut file = File::create(&filler).expect("an empty file takes no space");
        while file.write_all(&[1; 4096]).is_ok() {}
        let length = file.metadata().expect("it is open").len();
        file.set_len(length.saturating_sub(spare)).expect("a file can become shorter");
        filler
    }

    /// Tells the parent that the child has passed.
    pub fn done(self) {
        say(DONE);
    }
}

fn say(line: &str) {
    // Printed uncaptured by the test harness, on a line of its own.
    let _closed = writeln!(io::stdout(), "\n{line}");
}

/// Runs the test named `child` of this binary on a disk of `mebibytes` MiB, and waits for its end. The name has the
/// modules before it, as in `disk::child_on_a_full_disk`. On a system without mount namespaces prints a line that begins
/// with `SKIPPED:` (which the gate counts as a failure).
///
/// # Panics
/// If the child fails, with its output, or does not reach [`SmallDisk::done`].
pub fn run(child: &str, mebibytes: u32) {
    let place = tempfile::tempdir().expect("a directory to mount on");
    let can = |flags: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(flags).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let flags = [&["-m"][..], &["-r", "-m"]].into_iter().find(|flags| can(flags));
    let Some(flags) = flags else {
        say("SKIPPED: a test needs a small file system, and this system gives no mount namespace");
        return;
    };
    let script =
        format!("mount -t tmpfs -o size={mebibytes}m,mode=1777 none \"${PATH_VARIABLE}\" && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(flags).args(["sh", "-c", &script]).arg(env::current_exe().expect("this binary has a path"));
    command.args(["--exact", child, "--nocapture", "--test-threads=1"]).env(PATH_VARIABLE, place.path());
    let output = command.output().expect("unshare ran a moment ago");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.contains(DONE), "{child} on a small disk:\n{stdout}\n{stderr}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Child process of the test below; does nothing when run as a test.
    #[test]
    fn child_on_a_small_disk() {
        let Some(disk) = SmallDisk::mounted() else { return };
        let filler = disk.fill(1 << 20);
        let big = disk.path().join("big");
        let refused = std::fs::write(&big, vec![0; 2 << 20]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        std::fs::remove_file(filler).unwrap();
        std::fs::write(&big, vec![0; 2 << 20]).unwrap();
        disk.done();
    }

    #[test]
    fn the_disk_is_full_after_the_fill_only() {
        run("small_disk::tests::child_on_a_small_disk", 8);
    }

    #[test]
    #[should_panic(expected = "on a small disk")]
    fn a_child_test_that_does_not_run_is_reported() {
        run("small_disk::tests::no_such_child", 8);
    }
}
