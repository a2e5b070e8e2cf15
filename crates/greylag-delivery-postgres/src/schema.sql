-- Queues of producers.
create table if not exists greylag_queue_head (
    queue text primary key,
    stream_id bytea not null,
    epoch bigint not null,
    node text not null,
    path text not null,
    instance bigint not null,
    current bigint not null,
    highest_confirmed bigint not null
);
create table if not exists greylag_queue_message (
    queue text not null,
    seq_nr bigint not null,
    qualifier text not null,
    ack boolean not null,
    timestamp_ms bigint not null,
    codec bigint not null,
    manifest text not null,
    payload bytea not null,
    primary key (queue, seq_nr)
);
create table if not exists greylag_queue_confirmed (
    queue text not null,
    qualifier text not null,
    seq_nr bigint not null,
    timestamp_ms bigint not null,
    primary key (queue, qualifier)
);
-- Outboxes: applications insert into greylag_outbox_message, without seq_nr.
create table if not exists greylag_outbox_head (like greylag_queue_head including all);
create table if not exists greylag_outbox_confirmed (like greylag_queue_confirmed including all);
create table if not exists greylag_outbox_message (
    id bigint generated always as identity primary key,
    queue text not null,
    seq_nr bigint,
    qualifier text not null default '',
    ack boolean not null default false,
    timestamp_ms bigint not null default (extract(epoch from clock_timestamp()) * 1000)::bigint,
    codec bigint not null,
    manifest text not null,
    payload bytea not null
);
create unique index if not exists greylag_outbox_numbered on greylag_outbox_message (queue, seq_nr) where seq_nr is not null;
create index if not exists greylag_outbox_waiting on greylag_outbox_message (queue, id) where seq_nr is null;
-- Watermarks of entities.
create table if not exists greylag_delivery_dedupe (
    entity text not null,
    stream_id bytea not null,
    seq_nr bigint not null,
    recorded_at timestamptz not null,
    primary key (entity, stream_id)
);
