//! Runs a command: opens the connection to its node, calls it, and prints the answer.

use std::process::ExitCode;

use greylag_management::{connect, connect_tls, v1};
use tokio::time::timeout;

use crate::arguments::{Change, Cli, Command, Join, Prepare, Shards, Watch};
use crate::call::Call;
use crate::failure::{Failure, UNHEALTHY};
use crate::wait::{self, EventStream};
use crate::{delivery, journal, json, shards, table};

/// Runs the command.
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let limit = cli.limit();
    if let Command::Journal(command) = cli.command {
        return journal::run(command, &cli.common.tls, cli.common.json, cli.common.timeout).await;
    }
    if let Command::Shards(Shards::RemoveInternalData(remove)) = cli.command {
        return journal::remove_internal_data(remove, cli.common.json, cli.common.timeout).await;
    }
    let missing = || {
        Failure::Usage(
            "no node is named; give the address of its admin service by --address or GREYLAG_ADDRESS".to_owned(),
        )
    };
    let address = cli.common.address.clone().ok_or_else(missing)?;
    let tls = cli.common.tls.clone();
    let client = match cli.common.tls.client_tls()? {
        None => connect(&address),
        Some(tls) => connect_tls(&address, &tls),
    };
    let client = client.map_err(|error| Failure::Usage(error.to_string()))?;
    let mut call = Call { address, client, tls, json: cli.common.json, limit };
    match cli.command {
        Command::Watch(watch) => call.watch(&watch).await,
        command => {
            let what = format!("{} did not finish", name(&command));
            timeout(limit, call.execute(command)).await.map_err(|_| Failure::timed_out(&what, limit))?
        }
    }
}

fn name(command: &Command) -> &'static str {
    match command {
        Command::Members => "members",
        Command::Health => "health",
        Command::Counters => "counters",
        Command::Watch(_) => "watch",
        Command::Join(_) => "join",
        Command::Leave(_) => "leave",
        Command::Down(_) => "down",
        Command::Shards(_) => "shards",
        Command::Delivery => "delivery",
        Command::Journal(_) => "journal",
        Command::PrepareForShutdown(_) => "prepare-for-shutdown",
    }
}

impl Call {
    async fn execute(&mut self, command: Command) -> Result<ExitCode, Failure> {
        match command {
            Command::Members => {
                let reply = self.members().await?;
                self.print(&json::Members::from(&reply), || table::members(&reply))?;
            }
            Command::Health => return self.health().await,
            Command::Counters => {
                let reply = self.client.counters(v1::CountersRequest {}).await;
                let reply = self.answer(reply)?;
                self.print(&json::Counters::from(&reply), || table::counters(&reply))?;
            }
            Command::Join(join) => self.join(join).await?,
            Command::Leave(change) => self.leave(change).await?,
            Command::Down(change) => self.down(change).await?,
            Command::PrepareForShutdown(prepare) => self.prepare(&prepare).await?,
            Command::Watch(watch) => return self.watch(&watch).await,
            Command::Shards(command) => return shards::run(self, command).await,
            Command::Delivery => delivery::run(self).await?,
            Command::Journal(command) => return journal::run(command, &self.tls, self.json, Some(self.limit)).await,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn health(&mut self) -> Result<ExitCode, Failure> {
        let reply = self.client.health(v1::HealthRequest {}).await;
        let reply = self.answer(reply)?;
        self.print(&json::Health::from(&reply), || table::health(&reply))?;
        Ok(if reply.healthy { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
    }

    async fn join(&mut self, join: Join) -> Result<(), Failure> {
        let reply = self.client.join(v1::JoinRequest { addresses: join.addresses }).await;
        let member = self.answer(reply)?.member;
        if join.wait {
            EventStream::start(self).await?.until(self, wait::is_up(&member)).await?;
        }
        let what = if join.wait { "is Up" } else { "joined" };
        self.print(&json::Done::of("join", vec![member.clone()], join.wait), || format!("{member} {what}"))
    }

    async fn leave(&mut self, change: Change) -> Result<(), Failure> {
        // Events are followed before the command is sent, so that none is missed.
        let follow = if change.wait { Some(EventStream::start(self).await?) } else { None };
        let reply = self.client.leave(v1::LeaveRequest { address: change.member }).await;
        let members = self.answer(reply)?.members;
        if let Some(follow) = follow {
            follow.until(self, wait::are_gone(&members)).await?;
        }
        let what = if change.wait { "left" } else { "was told to leave" };
        self.print(&json::Done::of("leave", members.clone(), change.wait), || format!("{} {what}", members.join(", ")))
    }

    async fn down(&mut self, change: Change) -> Result<(), Failure> {
        let follow = if change.wait { Some(EventStream::start(self).await?) } else { None };
        let reply = self.client.down(v1::DownRequest { address: change.member }).await;
        let members = self.answer(reply)?.members;
        if let Some(follow) = follow {
            follow.until(self, wait::are_gone(&members)).await?;
        }
        let what = if change.wait { "is removed" } else { "is Down" };
        self.print(&json::Done::of("down", members.clone(), change.wait), || format!("{} {what}", members.join(", ")))
    }

    async fn prepare(&mut self, prepare: &Prepare) -> Result<(), Failure> {
        let follow = if prepare.wait { Some(EventStream::start(self).await?) } else { None };
        let reply = self.client.prepare_for_full_shutdown(v1::PrepareForFullShutdownRequest {}).await;
        self.answer(reply)?;
        if let Some(follow) = follow {
            follow.until(self, wait::are_ready).await?;
        }
        let what = if prepare.wait { "is ready for its shutdown" } else { "prepares for its shutdown" };
        self.print(&json::Done::of("prepare-for-shutdown", Vec::new(), prepare.wait), || format!("the cluster {what}"))
    }

    async fn watch(&mut self, watch: &Watch) -> Result<ExitCode, Failure> {
        let begun = self.client.watch(v1::WatchRequest {});
        let begun =
            timeout(self.limit, begun).await.map_err(|_| Failure::timed_out("watch did not start", self.limit))?;
        let mut events = self.answer(begun)?;
        let mut printed = 0;
        while watch.events.is_none_or(|count| printed < count) {
            let event = tokio::select! {
                event = events.message() => event,
                _ = tokio::signal::ctrl_c() => break,
            };
            match event {
                Ok(Some(event)) => self.print(&json::Event::from(&event), || table::event(&event))?,
                // The node has ended, and closed the stream.
                Ok(None) => break,
                Err(status) => return Err(Failure::from_status(&self.address, &status)),
            }
            printed += 1;
        }
        Ok(ExitCode::SUCCESS)
    }
}
