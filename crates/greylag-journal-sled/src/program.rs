//! `greylag-journal-sled`: verifies, exports and salvages an embedded journal that no process has open.
//! `docs/cli.md` describes the shapes of `--json` and the exit codes.

use std::fs::File;
use std::io::{BufWriter, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use greylag_journal_sled::maintenance::{self, Counts, Failure, Missing, Salvaged, Verification};

/// Looks at an embedded journal that no process has open, and saves what is sound of a damaged one.
#[derive(Debug, Parser)]
#[command(name = "greylag-journal-sled", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
struct Cli {
    /// Print JSON in place of text: one object.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done, and nothing is damaged
  1  it could not be done
  2  the command line makes no sense
  3  done, and something is damaged";

#[derive(Debug, Subcommand)]
enum Command {
    /// Read everything and tell what is damaged. Works on a copy beside the directory, which it removes again.
    Verify {
        /// Directory of the journal.
        directory: PathBuf,
        /// Write the file greylag.guard anew if it is lost, and all else is sound.
        #[arg(long)]
        renew_guard: bool,
    },
    /// Write everything that can be read as JSON, one object a line.
    Export {
        /// Directory of the journal.
        directory: PathBuf,
        /// Where to; the standard output if it is not given.
        file: Option<PathBuf>,
    },
    /// Copy what is sound into a new journal. The old one is not changed.
    Salvage {
        /// Directory of the damaged journal.
        directory: PathBuf,
        /// Directory of the new one; it must not exist yet, or be empty.
        new: PathBuf,
    },
}

const DAMAGED: u8 = 3;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DAMAGED),
        Err(failure) => {
            // The write fails only if stderr is closed; the exit code tells the failure all the same.
            let _gone = writeln!(stderr(), "greylag-journal-sled: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; answers whether nothing is damaged.
fn run(cli: &Cli) -> Result<bool, Failure> {
    let output = |source| Failure::File { path: "the output".into(), source };
    match &cli.command {
        Command::Verify { directory, renew_guard } => {
            let found =
                if *renew_guard { maintenance::renew_guard(directory)? } else { maintenance::verify(directory)? };
            let text = if cli.json { json(&found) } else { verified(&found) };
            stdout().write_all(text.as_bytes()).map_err(output)?;
            Ok(found.is_sound())
        }
        Command::Export { directory, file } => {
            let found = match file {
                Some(path) => {
                    let failed = |source| Failure::File { path: path.clone(), source };
                    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
                    let found = maintenance::export(directory, &mut file)?;
                    file.flush().map_err(failed)?;
                    found
                }
                None => {
                    let mut out = BufWriter::new(stdout().lock());
                    let found = maintenance::export(directory, &mut out)?;
                    out.flush().map_err(output)?;
                    found
                }
            };
            Ok(found.is_sound())
        }
        Command::Salvage { directory, new } => {
            let saved = maintenance::salvage(directory, new)?;
            let text = if cli.json { json(&saved) } else { salvaged(&saved) };
            stdout().write_all(text.as_bytes()).map_err(output)?;
            Ok(saved.damage.is_empty())
        }
    }
}

fn json(of: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(of).expect("numbers and texts are JSON");
    text + "\n"
}

fn counts(counts: &Counts) -> String {
    let Counts { commits, ids, events, snapshots, states, slices } = counts;
    format!(
        "{commits} commits, {ids} ids, {events} events, {snapshots} snapshots, {states} durable states, \
         {slices} slices of projections\n"
    )
}

fn verified(found: &Verification) -> String {
    let mut text = counts(&found.counts);
    found.damage.iter().for_each(|what| text += &format!("damaged: {what}\n"));
    text += &missing(found.missing_commits, &found.missing);
    text + if found.is_sound() { "everything is sound\n" } else { "`salvage` saves what is sound\n" }
}

fn missing(commits: u64, events: &[Missing]) -> String {
    if commits == 0 && events.is_empty() {
        return String::new();
    }
    let count: u64 = events.iter().map(|missing| missing.last - missing.first + 1).sum();
    format!("missing: {commits} commits, {count} events that are known of\n")
}

fn salvaged(saved: &Salvaged) -> String {
    let mut text = format!("saved: {}", counts(&saved.counts));
    saved.damage.iter().for_each(|what| text += &format!("damaged: {what}\n"));
    text += &missing(saved.missing_commits, &saved.missing);
    if saved.left_over > 0 {
        let (count, file) = (saved.left_over, maintenance::LEFT_OVER_FILE);
        text += &format!("left over: {count} records that no history can go on with are in {file}\n");
    }
    for cut in &saved.cuts {
        let (id, deleted_to, highest, before) = (&cut.id, cut.deleted_to, cut.highest, cut.highest_before);
        text += &format!("cut: {id} has events {} to {highest}; its last one was {before}\n", deleted_to + 1);
    }
    text
}
