// SPDX-License-Identifier: Apache-2.0

package rocltest

import "log/slog"

// Logger returns the logger of the nodes and contexts.
func (c *TestCluster) Logger() *slog.Logger { return c.log }
