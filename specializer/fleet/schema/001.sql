-- SPDX-License-Identifier: Apache-2.0
-- Version 1: servers, what they measured, what was found wrong, who searches what.
-- `env` is the environment key of a kernel (device, driver or compiler, model shape, numerics);
-- `key` names slot, template with its text, and knobs within it. Times are the database's own.

CREATE TABLE whet_server (
    server  text PRIMARY KEY CHECK (length(server) = 16),
    env     text NOT NULL CHECK (length(env) = 16),
    name    text NOT NULL CHECK (length(name) <= 100),
    version text NOT NULL CHECK (length(version) <= 40),
    device  text NOT NULL CHECK (length(device) <= 200),
    started timestamptz NOT NULL DEFAULT now(),
    seen    timestamptz NOT NULL DEFAULT now(),
    stopped boolean NOT NULL DEFAULT false
);

CREATE SEQUENCE whet_seq;

CREATE TABLE whet_kernel (
    env      text NOT NULL CHECK (length(env) = 16),
    key      text NOT NULL CHECK (length(key) = 16),
    server   text NOT NULL CHECK (length(server) = 16),
    seq      bigint NOT NULL DEFAULT nextval('whet_seq'),
    slot     text NOT NULL CHECK (length(slot) <= 40),
    template text NOT NULL CHECK (length(template) <= 48),
    source   text NOT NULL CHECK (length(source) = 16),
    knobs    text NOT NULL CHECK (length(knobs) <= 400),
    state    text NOT NULL CHECK (length(state) <= 16),
    own_s    double precision NOT NULL,
    speed    double precision NOT NULL,
    reason   text NOT NULL CHECK (length(reason) <= 240),
    evidence text NOT NULL CHECK (length(evidence) <= 8192),
    changed  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (env, key, server)
);
CREATE INDEX whet_kernel_seq ON whet_kernel (env, seq);
CREATE INDEX whet_kernel_changed ON whet_kernel (changed);

CREATE TABLE whet_retraction (
    env    text NOT NULL CHECK (length(env) = 16),
    key    text NOT NULL CHECK (length(key) = 16),
    seq    bigint NOT NULL DEFAULT nextval('whet_seq'),
    slot   text NOT NULL CHECK (length(slot) <= 40),
    server text NOT NULL CHECK (length(server) <= 16),
    name   text NOT NULL CHECK (length(name) <= 100),
    reason text NOT NULL CHECK (length(reason) <= 240),
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (env, key)
);

CREATE TABLE whet_verdict (
    env    text NOT NULL CHECK (length(env) = 16),
    key    text NOT NULL CHECK (length(key) = 16),
    server text NOT NULL CHECK (length(server) = 16),
    name   text NOT NULL CHECK (length(name) <= 100),
    upheld boolean NOT NULL,
    words  text NOT NULL CHECK (length(words) <= 240),
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (env, key, server)
);

CREATE TABLE whet_lease (
    env    text NOT NULL CHECK (length(env) = 16),
    slot   text NOT NULL CHECK (length(slot) <= 40),
    server text NOT NULL DEFAULT '' CHECK (length(server) <= 16),
    since  timestamptz NOT NULL DEFAULT now(),
    until  timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (env, slot)
);
