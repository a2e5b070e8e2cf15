//! The disk under the tables is full: appends are refused by name, what was acknowledged stays and can be
//! read, and it goes on by itself once there is room. Kit case `crash 4`.
//!
//! The child is this very test binary, on a small file system of its own that nobody else sees; the tables
//! lie there, the server's log of writes does not (a server whose log finds no room ends, and starts again
//! when there is some). Source: persistence §8 (disk full).

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Writer, id, open, payloads, read_all, with_server};
use greylag_journal_postgres::PostgresJournal;
use greylag_persistence::{AppendError, Journal, RejectReason};

const DISK: &str = "GREYLAG_SMALL_DISK";

fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Takes all the space there is, but `spare` bytes.
fn fill(disk: &Path, spare: u64) -> PathBuf {
    let filler = disk.join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let length = file.metadata().unwrap().len();
    file.set_len(length.saturating_sub(spare)).unwrap();
    filler
}

/// Appends until it is refused; answers how, and what was acknowledged.
async fn append_until_refused(journal: &PostgresJournal, writer: &mut Writer) -> (AppendError, Vec<String>) {
    let mut stored = Vec::new();
    loop {
        let text = format!("{}:{}", stored.len(), "x".repeat(30_000));
        match writer.append(journal, &[&text]).await {
            Ok(_) => stored.push(text),
            Err(error) => return (error, stored),
        }
    }
}

/// Not a test of its own.
#[test]
fn child_on_a_small_disk() {
    let Some(disk) = std::env::var_os(DISK).map(PathBuf::from) else { return };
    with_server(async |mut server| {
        // The server must own the directory, so it makes it.
        let space = disk.join("space");
        server.psql(&format!("copy (select 1) to program 'mkdir {}'", space.display())).unwrap();
        server.psql(&format!("create tablespace small location '{}'", space.display())).unwrap();
        server.psql("alter database postgres set default_tablespace = small").unwrap();
        let journal = open(&server).await;
        // As it is, not compressed.
        server.psql("alter table event alter payload set storage external").unwrap();
        let mut writer = Writer::claim(&journal, id("Counter|1")).await;
        let filler = fill(&disk, 8 << 20);
        let (refused, stored) = append_until_refused(&journal, &mut writer).await;
        let is_low =
            matches!(&refused, AppendError::Rejected(RejectReason::StorageLow(words)) if words.contains("53100"));
        assert!(is_low, "{refused:?}");
        assert!(stored.len() > 50, "only {} appends found room in 8 MiB", stored.len());
        let read = async |writer: &Writer| payloads(&read_all(&journal, &writer.id).await);
        assert!(read(&writer).await == stored, "what was acknowledged is read while the disk is full");
        // On a full disk it ends, as by a crash; it cannot even recover before there is room.
        tokio::task::block_in_place(|| server.stop());
        std::fs::remove_file(filler).unwrap();
        tokio::task::block_in_place(|| server.restart().unwrap());
        assert!(read(&writer).await == stored, "and after the server has ended on a full disk");
        writer.append(&journal, &["goes on"]).await.unwrap();
        let all = read(&writer).await;
        assert!(all[..stored.len()] == stored && all[stored.len()..] == ["goes on"]);
        journal.close().await.unwrap();
        say("resumed");
    });
}

#[test]
fn a_full_disk_refuses_appends_and_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let can = |flags: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(flags).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    // The server runs as another user than root, so that a namespace of root's own would not do.
    if !can(&["-m"]) {
        say("\nSKIPPED: a test needs a small file system, and no mount namespace of its own is to be had here");
        return;
    }
    let script = format!("mount -t tmpfs -o size=64m,mode=1777 none \"${DISK}\" && exec \"$0\" \"$@\"");
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_on_a_small_disk", "--nocapture", "--test-threads=1"])
        .env(DISK, place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && (said.contains("resumed") || said.contains("SKIPPED")), "{said}\n{complained}");
}
