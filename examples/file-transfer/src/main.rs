//! A file sent point to point to a receiver that is killed half-way; a second receiver continues where it stopped.
//!
//! ```sh
//! cargo run --package file-transfer                  # 16 MiB made up
//! cargo run --package file-transfer -- some.iso
//! ```
//! The sender reads the file piece by piece and waits for room before each, so neither side ever holds the whole file.
//! A piece is larger than one frame of the connection; the transport cuts the piece into chunks, between which other
//! messages of the nodes pass, and joins the chunks again. The receiver confirms a piece once it is written. The second
//! receiver registers with the same producer, and gets the pieces that the first one did not confirm. Each piece has
//! its offset, so a piece that was written but not confirmed is simply written again to the same place.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use greylag::delivery::{ConsumerController, ControllerRef, Dedupe, ProducerController};
use greylag::prelude::*;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Bytes of a piece, which makes eight chunks.
const PIECE: usize = 1 << 20;
/// The time limit for the last confirmations, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A piece of the file; an empty one marks the end.
#[derive(Clone, PartialEq, prost::Message)]
struct Piece {
    #[prost(uint64, tag = "1")]
    offset: u64,
    #[prost(bytes = "bytes", tag = "2")]
    bytes: Bytes,
}

/// The receiver process: registers with the sender's controller, and ends after the last piece.
async fn receive(seed: &str, sender: &str, path: &Path) -> greylag::Result {
    let node = Node::builder("transfer").bind("127.0.0.1", 0).seed_nodes([seed]).start().await?;
    let consumer = ConsumerController::builder(prost("transfer.piece")).spawn(node.remoting())?;
    consumer.register_to(&sender.parse::<ControllerRef>()?);
    let mut pieces = consumer.start(Dedupe::none());
    let mut file = File::options().create(true).truncate(false).write(true).open(path).await?;
    let mut is_first = true;
    while let Some(piece) = pieces.next().await {
        let piece: Delivery<Piece> = piece;
        if std::mem::take(&mut is_first) {
            println!("a receiver, from byte {} on", piece.offset);
        }
        file.seek(SeekFrom::Start(piece.offset)).await?;
        file.write_all(&piece.bytes).await?;
        file.flush().await?;
        let is_last = piece.bytes.is_empty();
        piece.confirm(); // not before the piece is written
        if is_last {
            consumer.deliver_then_stop();
        }
    }
    node.shutdown().await
}

/// Starts this program as a receiver process, which ends no later than this process.
fn start_receiver(node: &Node, sender: &ControllerRef, path: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--receive", &node.address().to_string(), &sender.to_string()]).arg(path);
    command.kill_on_drop(true).spawn()
}

/// The next piece of a file: full, unless the file ends.
async fn read(file: &mut File, offset: u64) -> std::io::Result<Piece> {
    let mut bytes = Vec::with_capacity(PIECE);
    file.take(PIECE as u64).read_to_end(&mut bytes).await?;
    Ok(Piece { offset, bytes: bytes.into() })
}

async fn checksum(path: &Path) -> std::io::Result<u32> {
    let (mut file, mut buffer, mut crc32c) = (File::open(path).await?, vec![0; 64 << 10], 0);
    loop {
        match file.read(&mut buffer).await? {
            0 => return Ok(crc32c),
            read => crc32c = crc32c::crc32c_append(crc32c, &buffer[..read]),
        }
    }
}

#[tokio::main]
async fn main() -> greylag::Result {
    let directory = tempfile::tempdir()?;
    let source = match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [flag, seed, sender, path] if flag == "--receive" => return receive(seed, sender, Path::new(path)).await,
        [file] => PathBuf::from(file),
        _ => {
            let numbers: Vec<u8> = (0..4_u32 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
            let file = directory.path().join("made-up");
            std::fs::write(&file, numbers)?;
            file
        }
    };
    let (copy, length) = (directory.path().join("copy"), std::fs::metadata(&source)?.len());

    let node = Node::builder("transfer").bind("127.0.0.1", 0).start().await?;
    let controller =
        ProducerController::builder(ProducerId::new("file")?, prost("transfer.piece")).spawn(node.remoting())?;
    let mut receiver = start_receiver(&node, controller.reference(), &copy)?;

    let (producer, mut file, mut offset, mut is_killed) = (controller.start(), File::open(&source).await?, 0, false);
    loop {
        let piece = read(&mut file, offset).await?;
        let sent = piece.bytes.len() as u64;
        offset += sent;
        producer.send(piece).await?; // waits for room at the receiver
        if sent == 0 {
            break;
        }
        if offset >= length / 2 && !is_killed {
            receiver.kill().await?;
            let unconfirmed = producer.stats().unconfirmed;
            println!("the receiver is killed after {offset} of {length} bytes; {unconfirmed} pieces are not confirmed");
            receiver = start_receiver(&node, controller.reference(), &copy)?;
            is_killed = true;
        }
    }
    producer.drain(TIME_LIMIT).await?;
    let status = receiver.wait().await?;
    node.shutdown().await?;

    let (here, there) = (checksum(&source).await?, checksum(&copy).await?);
    println!("{length} bytes, crc32c {here:08x} here and {there:08x} there");
    let arrived = status.success() && here == there;
    if arrived { Ok(()) } else { Err(greylag::Error::new("the file did not arrive as it was")) }
}
