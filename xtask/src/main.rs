//! The project's own tools: each does one thing and says what it did.
//!
//! `ci` is the whole gate, the same for people and machines; it changes no file. `layers` holds the crate graph, the cycles
//! of modules and the absences that make simulation possible; `spec` and `scenarios` hold code, tests and specification
//! together, `licences` what is built and what `deny.toml` says. `proto`, `bless`, `sim`, `laws`, `durable`,
//! `journal-crash`, `journal-damage`, `mutants`, `netns`, `storefront`, `soak`, `jobs`, `attack`, `sizes` and `bench` run
//! what their names say.

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
    /// Check the crate graph, cycles of modules, and that machines know no tokio, no clock and no unseeded chance.
    Layers {
        /// Only print the cycles of modules in this crate, with the lines that make them.
        #[arg(long, value_name = "CRATE")]
        cycles: Option<String>,
    },
    /// Count types with many fields, types that are spread over many files, and folders with many files.
    Sizes,
    /// Check that every row of docs/scenarios.md names a test that exists, and that docs/spec holds nothing without a row.
    Scenarios,
    /// Check that every citation of the specification leads to an anchor of docs/spec, and that anchors are unique.
    Spec {
        /// Name all rules that no code and no test cites, and every number that was taken for prose.
        #[arg(long)]
        unused: bool,
    },
    /// Check that the licence of every crate that is built is one that deny.toml allows.
    Licences,
    /// Generate the protobuf code anew from proto/.
    Proto {
        /// Change nothing; fail if the committed code differs.
        #[arg(long)]
        check: bool,
    },
    /// Record the transcripts of all crates anew; read the difference before you commit it.
    Bless,
    /// Run the simulation over seeds; a failure prints its seed and the command that replays it.
    Sim(PassedOn),
    /// Play each scenario of the cluster with many seeds, optimized.
    SimCluster {
        /// How many seeds each.
        #[arg(long, default_value_t = 100)]
        seeds: u64,
    },
    /// Stop the process that answers for 0.5 to 60 s, with short and default settings: no answer may be old.
    Sleeps,
    /// Kill a durable replicator under load, again and again, optimized; what was acknowledged must be there.
    Durable {
        /// How many times.
        #[arg(long, default_value_t = 1_000)]
        cycles: u64,
    },
    /// Kill the embedded journal under load over everything it keeps, optimized; what was acknowledged must be there.
    JournalCrash {
        /// How many times.
        #[arg(long, default_value_t = 5_000)]
        cycles: u64,
    },
    /// Damage the embedded journal, optimized: single bits, lost ends of files, pages that a power loss took.
    JournalDamage {
        /// How many bits, and how many losses of power.
        #[arg(long, default_value_t = 10_000)]
        flips: u64,
    },
    /// Check the laws of every replicated type over so many random histories each, optimized.
    Laws {
        /// How many histories each type gets.
        #[arg(long, default_value_t = 10_000)]
        histories: u64,
        /// Only types whose test's name holds this.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Run real nodes in network namespaces and break them: kills, pauses, cuts, flapping. Needs root.
    Netns(PassedOn),
    /// Run the storefront again and again, killing a node at a random point each time.
    Storefront(storefront::Runs),
    /// Saturate the data lanes of several node processes; fails if a member ever looks unreachable.
    Soak {
        /// How long the load lasts.
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// How many node processes.
        #[arg(long, default_value_t = 4)]
        nodes: usize,
    },
    /// Give a million jobs to workers of which one is killed every second; `overload` offers more than they can do.
    Jobs(PassedOn),
    /// Attack a real cluster under the storefront's load, as strangers, at the admin ports and as a member gone bad.
    Attack {
        /// How long the purchases last; all but the first tenth of it is attack.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// The nodes speak TLS.
        #[arg(long)]
        tls: bool,
        /// Report heartbeat times and memory, and judge neither.
        #[arg(long)]
        lenient: bool,
    },
    /// Feed every decoder that reads bytes of a peer with damaged ones. Needs cargo-fuzz and a nightly compiler.
    Fuzz {
        /// How many inputs each target gets.
        #[arg(long, default_value_t = 1_000_000)]
        runs: u64,
        /// Only targets whose name holds this.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Change the pure machines on purpose; of the changes that compile, 95 in 100 must turn a test red. Needs cargo-mutants.
    Mutants {
        /// Make one in so many of all changes.
        #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
        share: u64,
        /// Which of them: another seed draws another share.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Make all changes in the lines that differ from this revision, and no others.
        #[arg(long)]
        diff: Option<String>,
        /// Only crates whose name holds this.
        #[arg(short = 'p', long = "package", alias = "only", default_value = "")]
        only: String,
    },
    /// Run every benchmark and print its figures.
    Bench,
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct PassedOn {
    /// Passed on as they stand; `--help` lists them.
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
