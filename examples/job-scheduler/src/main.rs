//! Jobs that are scheduled once and then continue by themselves until done, also over restarts of the node.
//!
//! Each job is an entity that does one step after the other. Its type remembers its entities, so an interrupted job
//! starts again together with its shard, without a message; the job's journal tells the next step. A job that is done
//! passivates, and so is no longer remembered. The program schedules three jobs, stops its node while they run, and
//! starts another node, to which it sends nothing.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use greylag::persistence::Signal;
use greylag::prelude::*;

const JOB: EntityKey<Command> = EntityKey::new("Job");
const STEPS: u32 = 5;

#[derive(Serialize, Deserialize)]
enum Command {
    /// Do the next step, and schedule the one after it.
    Step,
}

#[derive(Serialize, Deserialize)]
struct StepDone;

/// A finished step: the job's name, and the number of the step.
type Done = (String, u32);

struct Job {
    done: Sender<Done>,
}

impl EventSourced for Job {
    type Command = Command;
    type Event = StepDone;
    type State = u32;

    fn on_command(&mut self, cx: &mut Ctx<'_, Command>, done: &u32, Command::Step: Command) -> Effect<Self> {
        let (name, step) = (cx.id().to_owned(), done + 1);
        let told = self.done.clone();
        let effect = Effect::persist(StepDone).then_run(move |_| {
            println!("{name}: step {step} of {STEPS}");
            // Ignore the error: the main function may have ended.
            told.send((name, step)).ok();
        });
        if step < STEPS {
            cx.once("next", Duration::from_millis(100), Command::Step);
            effect
        } else {
            effect.then_passivate()
        }
    }

    fn apply(done: &mut u32, _: &StepDone) {
        *done += 1;
    }

    /// After recovery, schedules the next step of the job; passivates a job that was interrupted after its last step.
    fn on_signal(&mut self, cx: &mut Ctx<'_, Command>, done: &u32, signal: &Signal) {
        if *signal == Signal::RecoveryCompleted {
            if *done < STEPS {
                cx.once("next", Duration::from_millis(100), Command::Step);
            } else {
                cx.passivate();
            }
        }
    }
}

/// Starts a node that hosts jobs.
async fn start(stores: &Stores, done: &Sender<Done>) -> Result<Node, greylag::StartError> {
    let done = done.clone();
    let jobs = EntityType::event_sourced(JOB, move |_| Ok(Job { done: done.clone() }))
        .commands(json("job.command"))
        .events(json("job.step-done"))
        .remember_entities(RememberStore::EventSourced);
    Node::builder("scheduler").stores(stores.clone()).entity(jobs).start().await
}

/// Waits until any job has finished step `wanted`.
fn wait_for(done: &Receiver<Done>, wanted: u32) -> Done {
    let deadline = Duration::from_secs(60);
    std::iter::from_fn(|| done.recv_timeout(deadline).ok()).find(|(_, step)| *step == wanted).expect("jobs go on")
}

#[tokio::main]
async fn main() -> greylag::Result {
    // The journal outlives the nodes; a real program would use PostgreSQL, for example.
    let stores = Stores::in_memory_shared();
    let (done, steps) = channel();

    let node = start(&stores, &done).await?;
    let jobs = node.sharding().region(JOB)?;
    for name in ["backup", "billing", "report"] {
        jobs.start_entity(name).await?;
    }
    tokio::task::block_in_place(|| wait_for(&steps, 2));
    node.shutdown().await?;
    println!("the node was stopped");

    let node = start(&stores, &done).await?;
    let mut finished = Vec::new();
    while finished.len() < 3 {
        let (name, _) = tokio::task::block_in_place(|| wait_for(&steps, STEPS));
        finished.push(name);
    }
    finished.sort();
    assert_eq!(finished, ["backup", "billing", "report"], "each job is done once");
    node.shutdown().await
}
