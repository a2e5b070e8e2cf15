//! The project's own tools: each does one thing and prints what it did.
//!
//! `ci` is the whole gate, the same for people and machines; it changes no file. `layers` checks the crate graph, the
//! cycles of modules, that machines use no clock, task or disk, and that no shipped crate can omit a clause. `spec` and
//! `scenarios` check that code and tests agree with the specification; `licences` checks the crates that are built
//! against `deny.toml`. `proto`, `bless`, `sim`, `laws`, `durable`, `journal-crash`, `journal-damage`, `mutants`,
//! `netns`, `storefront`, `soak`, `jobs`, `attack`, `sizes` and `bench` run the programs and tests of these names.

mod bench;
mod ci;
mod citations;
mod cycles;
mod fuzz;
mod layers;
mod licences;
mod modules;
mod mutants;
mod proto;
mod run;
mod sabotage;
mod scenarios;
mod sizes;
mod spec;
mod storefront;
mod transcripts;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tools", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the whole gate: formatting, lints, layers, generated code, the README's test command, simulation.
    Ci,
    /// Check the crate graph, the cycles of modules, and that machines use no tokio, no clock and no unseeded randomness.
    Layers {
        /// Only print the cycles of modules in this crate, with the lines that form them.
        #[arg(long, value_name = "CRATE")]
        cycles: Option<String>,
    },
    /// List types with many fields, types with `impl` blocks in many files, and folders with many files.
    Sizes,
    /// Check that every row of docs/scenarios.md names an existing test, and that every scenario and rule of docs/spec has a row.
    Scenarios,
    /// Check that every citation of the specification names an anchor of docs/spec, and that anchors are unique.
    Spec {
        /// List all rules that no code and no test cites, and every number that was not read as a citation.
        #[arg(long)]
        unused: bool,
    },
    /// Check that deny.toml allows the licence of every crate that is built.
    Licences,
    /// Generate the protobuf code from proto/.
    Proto {
        /// Change no file; fail if the committed code differs.
        #[arg(long)]
        check: bool,
    },
    /// Record the transcripts of all crates again; read the difference before you commit it.
    Bless,
    /// Run the simulation over seeds; a failure prints its seed and the command that replays it.
    Sim(PassThrough),
    /// Run each scenario of the cluster with many seeds, in a release build.
    SimCluster {
        /// Seeds for each scenario.
        #[arg(long, default_value_t = 100)]
        seeds: u64,
    },
    /// Pause the process that answers for 0.5 to 60 s, with short and default settings: no answer may be stale.
    Sleeps,
    /// Kill a durable replicator under load many times, in a release build; every acknowledged update must be stored.
    Durable {
        /// Number of kills.
        #[arg(long, default_value_t = 1_000)]
        cycles: u64,
    },
    /// Kill the embedded journal under load on all its stores, in a release build; every acknowledged write must be stored.
    JournalCrash {
        /// Number of kills.
        #[arg(long, default_value_t = 5_000)]
        cycles: u64,
    },
    /// Damage the embedded journal, in a release build: single bits, lost ends of files, pages lost with the power.
    JournalDamage {
        /// Number of flipped bits, and of power losses.
        #[arg(long, default_value_t = 10_000)]
        flips: u64,
    },
    /// Check the laws of every replicated type over random histories, in a release build.
    Laws {
        /// Histories for each type.
        #[arg(long, default_value_t = 10_000)]
        histories: u64,
        /// Only types whose test name contains this text.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Run real nodes in network namespaces under faults: kills, pauses, cuts, flapping links. Needs root.
    Netns(PassThrough),
    /// Run the storefront many times, and kill a node at a random point of each run.
    Storefront(storefront::Runs),
    /// Saturate the data lanes of several node processes; fail if a member is ever found unreachable.
    Soak {
        /// Duration of the load, in seconds.
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// Number of node processes.
        #[arg(long, default_value_t = 4)]
        nodes: usize,
    },
    /// Give a million jobs to workers of which one is killed every second; `overload` offers more jobs than the workers can do.
    Jobs(PassThrough),
    /// Attack a real cluster under the storefront's load, as a stranger, at the admin ports and as a malicious member.
    Attack {
        /// Duration of the purchases, in seconds; the attack begins after a tenth of it.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Let the nodes use TLS.
        #[arg(long)]
        tls: bool,
        /// Only report heartbeat times and memory; do not fail because of them.
        #[arg(long)]
        lenient: bool,
    },
    /// Feed damaged bytes to every decoder that reads bytes of a peer. Needs cargo-fuzz and a nightly compiler.
    Fuzz {
        /// Inputs for each target.
        #[arg(long, default_value_t = 1_000_000)]
        runs: u64,
        /// Only targets whose name contains this text.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Change the pure machines on purpose; for 95 in 100 changes that compile, a test must fail. Needs cargo-mutants.
    Mutants {
        /// Make one of this many changes.
        #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
        share: u64,
        /// Seed that selects the changes.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Make all changes in the lines that differ from this revision, and no others.
        #[arg(long)]
        diff: Option<String>,
        /// Only crates whose name contains this text.
        #[arg(short = 'p', long = "package", alias = "only", default_value = "")]
        only: String,
    },
    /// Run every benchmark and print its results.
    Bench,
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct PassThrough {
    /// Arguments of the program, passed on unchanged; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> std::process::ExitCode {
    let outcome = match Cli::parse().task {
        Task::Ci => ci::ci(),
        Task::Layers { cycles: None } => layers::layers(),
        Task::Layers { cycles: Some(name) } => cycles::show(&name),
        Task::Sizes => sizes::sizes(),
        Task::Scenarios => scenarios::scenarios(),
        Task::Spec { unused } => spec::spec(unused),
        Task::Licences => licences::licences(),
        Task::Proto { check } => proto::proto(check),
        Task::Bless => transcripts::bless(),
        Task::Sim(args) => ci::sim(&args.arguments),
        Task::SimCluster { seeds } => ci::sim_cluster(seeds),
        Task::Sleeps => ci::sleeps(),
        Task::Durable { cycles } => ci::durable(cycles),
        Task::JournalCrash { cycles } => ci::journal_crash(cycles),
        Task::JournalDamage { flips } => ci::journal_damage(flips),
        Task::Laws { histories, only } => ci::laws(histories, &only),
        Task::Netns(args) => ci::netns(&args.arguments),
        Task::Storefront(runs) => storefront::runs(&runs),
        Task::Soak { seconds, nodes } => ci::soak(seconds, nodes),
        Task::Jobs(args) => ci::jobs(&args.arguments),
        Task::Attack { seconds, tls, lenient } => ci::attack(seconds, tls, lenient),
        Task::Fuzz { runs, only } => fuzz::fuzz(runs, &only),
        Task::Mutants { share, seed, diff, only } => mutants::mutants(&mutants::Choice { share, seed, diff, only }),
        Task::Bench => bench::bench(),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => {
            run::say(&format!("xtask: {failure}"));
            std::process::ExitCode::FAILURE
        }
    }
}
