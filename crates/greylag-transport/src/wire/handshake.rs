//! Hellos and their answers.

use std::time::Duration;

use bytes::Bytes;
use greylag_core::Uid;

use super::codes;
use super::limits::MAX_FEATURES;
use super::malformed::Malformed;
use super::nodes::{check_text, read_address, read_node, write_node};
use crate::endpoints::endpoint::shortened;
use crate::generated as pb;
use crate::lanes::lane::{Lane, LaneKind};
use crate::messages::hello::{Accepted, Features, Hello, HelloReply, Rejected};

fn read_features(names: &[String]) -> Result<Features, Malformed> {
    if names.len() > MAX_FEATURES {
        return Err(Malformed(format!("{} features, at most {MAX_FEATURES} are allowed", names.len())));
    }
    for name in names {
        check_text(name)?;
    }
    Ok(Features::from_names(names))
}

fn read_host_id(id: String) -> Result<Option<String>, Malformed> {
    check_text(&id)?;
    Ok(Some(id).filter(|id| !id.is_empty()))
}

fn write_cluster_id(id: Option<u128>) -> Bytes {
    id.map_or(Bytes::new(), |id| id.to_be_bytes().to_vec().into())
}

fn read_cluster_id(bytes: &[u8]) -> Option<u128> {
    bytes.try_into().ok().map(u128::from_be_bytes)
}

pub(super) fn write_hello(hello: &Hello) -> pb::Hello {
    pb::Hello {
        protocol_version: hello.protocol_version,
        min_supported: hello.min_supported,
        cluster_name: hello.cluster_name.clone(),
        from: Some(write_node(&hello.from)),
        to_host: hello.to.host().to_owned(),
        to_port: hello.to.port().into(),
        expected_uid: hello.expected_uid.map_or(0, Uid::get),
        lane: codes::write_lane(hello.lane.kind()).into(),
        lane_index: hello.lane.index().into(),
        lane_count: hello.lane_count.into(),
        stream_seq: hello.stream_seq,
        features: hello.features.to_names(),
        cluster_id: write_cluster_id(hello.cluster_id),
        host_id: hello.host_id.clone().unwrap_or_default(),
    }
}

pub(super) fn read_hello(hello: pb::Hello) -> Result<Hello, Malformed> {
    let index = u16::try_from(hello.lane_index).map_err(|_| Malformed("the lane index is too large".to_owned()))?;
    let lane = match codes::lane(hello.lane) {
        Some(LaneKind::Control) => Lane::CONTROL,
        Some(LaneKind::Ordinary) => Lane::ordinary(index),
        Some(LaneKind::Large) => Lane::LARGE,
        None => return Err(Malformed(format!("lane kind {} is unknown", hello.lane))),
    };
    check_text(&hello.cluster_name)?;
    Ok(Hello {
        protocol_version: hello.protocol_version,
        min_supported: hello.min_supported,
        cluster_name: hello.cluster_name,
        from: read_node(hello.from)?,
        to: read_address(&hello.to_host, hello.to_port)?,
        expected_uid: Uid::new(hello.expected_uid),
        lane,
        lane_count: u16::try_from(hello.lane_count).unwrap_or(u16::MAX),
        stream_seq: hello.stream_seq,
        features: read_features(&hello.features)?,
        cluster_id: read_cluster_id(&hello.cluster_id),
        host_id: read_host_id(hello.host_id)?,
    })
}

pub(super) fn write_hello_reply(reply: &HelloReply) -> pb::HelloReply {
    use pb::hello_reply::Answer;
    let answer = match reply {
        HelloReply::Accepted(accepted) => Answer::Accepted(pb::Accepted {
            from: Some(write_node(&accepted.from)),
            version: accepted.version,
            features: accepted.features.to_names(),
            limits: Some(pb::Limits { max_frame_bytes: accepted.max_frame_bytes, max_names: accepted.max_names }),
            host_id: accepted.host_id.clone().unwrap_or_default(),
            cluster_id: write_cluster_id(accepted.cluster_id),
        }),
        HelloReply::Rejected(rejected) => Answer::Rejected(pb::Rejected {
            code: codes::write_reject(rejected.code).into(),
            detail: rejected.detail.clone(),
            retry_after_ms: rejected.retry_after.map_or(0, |after| after.as_millis().try_into().unwrap_or(u32::MAX)),
            from: rejected.from.as_ref().map(write_node),
            quarantine_reason: rejected.reason.map_or(0, |reason| codes::write_quarantine_reason(reason).into()),
            holder: rejected.holder.as_ref().map(write_node),
        }),
    };
    pb::HelloReply { answer: Some(answer) }
}

pub(super) fn read_hello_reply(reply: pb::HelloReply) -> Result<HelloReply, Malformed> {
    use pb::hello_reply::Answer;
    match reply.answer {
        Some(Answer::Accepted(accepted)) => Ok(HelloReply::Accepted(Accepted {
            from: read_node(accepted.from)?,
            version: accepted.version,
            features: read_features(&accepted.features)?,
            max_frame_bytes: accepted.limits.as_ref().map_or(u64::MAX, |limits| limits.max_frame_bytes),
            max_names: accepted.limits.map_or(0, |limits| limits.max_names),
            cluster_id: read_cluster_id(&accepted.cluster_id),
            host_id: read_host_id(accepted.host_id)?,
        })),
        Some(Answer::Rejected(rejected)) => Ok(HelloReply::Rejected(Rejected {
            code: codes::reject(rejected.code),
            detail: shortened(rejected.detail),
            from: rejected.from.map(|node| read_node(Some(node))).transpose()?,
            reason: codes::quarantine_reason(rejected.quarantine_reason),
            holder: rejected.holder.map(|node| read_node(Some(node))).transpose()?,
            retry_after: Some(Duration::from_millis(rejected.retry_after_ms.into())).filter(|after| !after.is_zero()),
        })),
        None => Err(Malformed("an answer to a Hello that says neither yes nor no".to_owned())),
    }
}
