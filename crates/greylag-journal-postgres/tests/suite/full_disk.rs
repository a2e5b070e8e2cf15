//! The disk under the tables is full: appends are refused by name, acknowledged events stay and can be read, and the
//! journal works again by itself once there is room. Kit case `crash 4`.
//!
//! The tables lie on a small file system, but the server's log of writes does not: a server whose log finds no room
//! ends, and can start only when there is some. Source: persistence §8 (disk full).

use crate::common::{Writer, id, open, payloads, read_all, with_server};
use greylag_core::CodecId;
use greylag_journal_postgres::PostgresJournal;
use greylag_persistence::{
    AppendError, Journal, Metadata, NewSnapshot, RejectReason, SeqNr, SnapshotError, SnapshotStore,
};
use greylag_testkit::small_disk::{self, SmallDisk};

/// Appends until an append is refused; answers the error, and the acknowledged payloads.
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

fn large_snapshot(writer: &Writer) -> NewSnapshot {
    NewSnapshot {
        id: writer.id.clone(),
        seq_nr: SeqNr::FIRST,
        codec_id: CodecId::JSON,
        manifest: "counter".into(),
        schema_version: 1,
        payload: vec![b'1'; 8 << 20].into(),
        metadata: Metadata::default(),
    }
}

/// Child process of a test below; does nothing when run as a test.
#[test]
fn child_on_a_small_disk() {
    let Some(disk) = SmallDisk::mounted() else { return };
    with_server(async |mut server| {
        // The server makes the directory, since it must own it.
        let space = disk.path().join("space");
        server.psql(&format!("copy (select 1) to program 'cat > /dev/null; mkdir {}'", space.display())).unwrap();
        server.psql(&format!("create tablespace small location '{}'", space.display())).unwrap();
        server.psql("alter database postgres set default_tablespace = small").unwrap();
        let journal = open(&server).await;
        // Payloads are stored uncompressed, so that they fill the disk.
        for table in ["event", "snapshot"] {
            server.psql(&format!("alter table {table} alter payload set storage external")).unwrap();
        }
        let mut writer = Writer::claim(&journal, id("Counter|1")).await;
        let filler = disk.fill(8 << 20);
        let (refused, stored) = append_until_refused(&journal, &mut writer).await;
        let is_low =
            matches!(&refused, AppendError::Rejected(RejectReason::StorageLow(words)) if words.contains("53100"));
        assert!(is_low, "{refused:?}");
        assert!(stored.len() > 50, "only {} appends found room in 8 MiB", stored.len());
        let refused = journal.snapshots().save(large_snapshot(&writer)).await;
        assert!(matches!(&refused, Err(SnapshotError::Unavailable(failure)) if failure.is_answer()), "{refused:?}");
        let read = async |writer: &Writer| payloads(&read_all(&journal, &writer.id).await);
        assert!(read(&writer).await == stored, "what was acknowledged is read while the disk is full");
        // On a full disk the server stops as in a crash, and cannot recover before there is room.
        tokio::task::block_in_place(|| server.stop());
        std::fs::remove_file(filler).unwrap();
        tokio::task::block_in_place(|| server.restart().unwrap());
        assert!(read(&writer).await == stored, "and after the server has ended on a full disk");
        writer.append(&journal, &["goes on"]).await.unwrap();
        let all = read(&writer).await;
        assert!(all[..stored.len()] == stored && all[stored.len()..] == ["goes on"]);
        journal.close().await.unwrap();
        disk.done();
    });
}

#[test]
fn a_full_disk_refuses_appends_and_loses_nothing() {
    small_disk::run("full_disk::child_on_a_small_disk", 64);
}
