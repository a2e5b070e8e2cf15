//! The connection to one node, and what every command does with it.

use std::time::Duration;

use greylag_management::{Client, v1};
use serde::Serialize;
use tonic::{Response, Status};

use crate::arguments::Tls;
use crate::failure::Failure;
use crate::output;

/// One command under way.
pub(crate) struct Call {
    pub(crate) address: String,
    pub(crate) client: Client,
    pub(crate) tls: Tls,
    pub(crate) json: bool,
    pub(crate) limit: Duration,
}

impl Call {
    pub(crate) async fn members(&mut self) -> Result<v1::MembersReply, Failure> {
        let reply = self.client.members(v1::MembersRequest {}).await;
        self.answer(reply)
    }

    pub(crate) fn answer<T>(&self, reply: Result<Response<T>, Status>) -> Result<T, Failure> {
        reply.map(Response::into_inner).map_err(|status| Failure::from_status(&self.address, &status))
    }

    /// Prints one line of JSON, or text for people.
    pub(crate) fn print(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        output::print(self.json, value, text)
    }
}
