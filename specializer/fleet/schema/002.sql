-- SPDX-License-Identifier: Apache-2.0
-- Version 2: texts that a language model wrote, as rows of an export (specializer/transfer).
-- A server of version 1 does not know the table and goes on without it.

CREATE TABLE whet_text (
    env    text NOT NULL CHECK (length(env) = 16),
    slot   text NOT NULL CHECK (length(slot) <= 40),
    source text NOT NULL CHECK (length(source) = 16),
    server text NOT NULL CHECK (length(server) = 16),
    seq    bigint NOT NULL DEFAULT nextval('whet_seq'),
    body   text NOT NULL CHECK (length(body) <= 524288),
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (env, slot, source)
);
CREATE INDEX whet_text_seq ON whet_text (env, seq);
