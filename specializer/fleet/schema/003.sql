-- SPDX-License-Identifier: Apache-2.0
-- Version 3: up to which number of a retraction (seq) a server has heard what others say of kernels
-- that are wrong. NULL: a program of an older version, which does not tell.

ALTER TABLE whet_server ADD COLUMN IF NOT EXISTS heard bigint;
