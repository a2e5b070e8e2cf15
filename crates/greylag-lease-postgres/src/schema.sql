create table if not exists greylag_lease (
    name       text primary key,
    owner      text not null,                     -- host:port of who holds, or held it last
    token      bigint not null,                   -- drawn by the holder; what renew and release match
    version    bigint not null,                   -- grows with every change of hands
    expires_at timestamp with time zone not null  -- by this server's clock; -infinity once given up
);
