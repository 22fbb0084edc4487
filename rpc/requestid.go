// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/rand"
)

// metaRequestID is the name of the request identifier in the metadata of a call.
const metaRequestID = "request-id"

// RequestIDs returns an interceptor for [CallInterceptors] that gives each call a request
// identifier, which [RequestID] returns in the handler. A call that a handler makes with its own
// context has the identifier of the handler's call, so that all calls of one request share it. Any
// other call has a new random one, unless the program has set the metadata "request-id".
func RequestIDs() Interceptor {
	return func(ctx context.Context, i *Invocation, next func(context.Context) error) error {
		if i.Metadata[metaRequestID] == "" {
			id := RequestID(ctx)
			if id == "" {
				id = rand.Text()
			}
			if i.Metadata == nil {
				i.Metadata = Metadata{}
			}
			i.Metadata[metaRequestID] = id
		}
		return next(ctx)
	}
}

// RequestID returns the request identifier of the call whose handler got ctx. It returns "" if ctx
// is not the context of a handler, or if the call has none.
func RequestID(ctx context.Context) string {
	if i := InfoFrom(ctx); i != nil {
		return i.Metadata[metaRequestID]
	}
	return ""
}
