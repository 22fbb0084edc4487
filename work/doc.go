// SPDX-License-Identifier: Apache-2.0

// Package work hands tasks to workers that come and go. A task may be begun more than once: if a
// worker ends while it has a task, another worker does the task again. So the handler must be
// idempotent: to do a task twice must have the effect of doing it once. The queue yields one
// outcome for each task: a result, the handler's error, or, after so many lost attempts, a dead
// letter.
//
// A worker is any process that reaches the queue and calls [Serve]. The queue finds the workers by
// their attributes, those of its own process, of other processes and of other nodes:
//
//	err := work.Serve(ctx, c, rocl.Attrs{"job": "resize"}, func(ctx context.Context, in Image) (Thumb, error) { … })
//
// The program with the tasks opens a [Queue]:
//
//	q, err := work.Open[Image, Thumb](ctx, c, rocl.Match{"job": "resize"})
//	defer q.Close()
//	for r, err := range q.Do(ctx, tasks) { … } // r.Task, r.Out, r.Err
//
// [Queue.Do] takes the tasks from an iterator. [Queue.Put], [Queue.Finish] and [Queue.Results] are
// its parts, for programs whose tasks come from elsewhere, such as from results.
//
// # What is promised
//
//   - Each task that Put has accepted ends as one Result, unless the queue is closed first. It has an
//     error of the handler, which is not tried again, or a [DeadLetter], or else the result.
//   - A task whose worker has ended, was cut off, or did not answer ([Silence]), and a task whose
//     handler returned [Again], is done again, until it was begun as often as [Attempts] says. The
//     last attempt after a loss is made at a worker that has no other task, so a task that kills its
//     workers does not make dead letters of its neighbours.
//   - A worker that takes leave (ctx of Serve ends, as by SIGTERM) loses nothing and repeats nothing.
//   - A worker that has nothing to do gets tasks that another one has not begun.
//   - Put waits while [Backlog] tasks are in the queue: a slow loop over Results slows the source, and
//     memory is bounded.
//   - The end of a queue, or of its process, ends the contexts of its handlers.
//
// The tasks live in the memory of the queue's process, and end with it. A queue that must survive
// its process needs a database.
//
// # How it works
//
// The queue and each worker send each other messages of rocl, with up to 32 KiB of tasks or results
// in one. A larger task, or result, is a message of its own: up to rocl.MaxMessage, and what the
// memory of both sides allows. Beyond that the outcome is an error that matches rocl.ErrTooLarge.
package work
