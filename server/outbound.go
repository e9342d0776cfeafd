package server

import (
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

const (
	// partBytes is in what pieces gRPC gets a message: it frees each as it goes, so a slow
	// reader can be told from one that has stopped.
	partBytes = 64 << 10

	// Messages are encoded into buffers of powers of two, from 4 to 512 KiB, which are used
	// again; gRPC's own pool has none between 32 KiB and 1 MiB. A larger message, one of a
	// single large batch, gets a buffer that fits.
	leastBuffer, mostBuffer = 12, 19
)

// bufferPool is a pool of buffers of up to 1<<mostBuffer bytes.
type bufferPool struct{ small mem.BufferPool }

// Get returns a buffer of n bytes.
func (p bufferPool) Get(n int) *[]byte {
	if n > 1<<mostBuffer {
		b := make([]byte, n)
		return &b
	}
	return p.small.Get(n)
}

// Put takes a buffer back.
func (p bufferPool) Put(b *[]byte) {
	if n := cap(*b); n <= 1<<mostBuffer && n&(n-1) == 0 { // not one that append has made
		p.small.Put(b)
	}
}

func newBufferPool() (mem.BufferPool, error) {
	var sizes []uint8
	for n := uint8(leastBuffer); n <= mostBuffer; n++ {
		sizes = append(sizes, n)
	}
	small, err := mem.NewBinaryTieredBufferPool(sizes...)
	return bufferPool{small}, err
}

// outbound is a message that is encoded already; the codec hands its bytes to gRPC, once.
type outbound struct{ data mem.BufferSlice }

// encode turns the message that the call has built into bytes, which its reservation pays for
// until they have left.
func (c *callReads) encode(m proto.Message) (*outbound, error) {
	pool, size := c.budget.pool, proto.Size(m)
	options := proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		// gRPC does not say when it is done with one so small.
		b, err := options.Marshal(m)
		if err != nil {
			return nil, err
		}
		c.abandon()
		return &outbound{mem.BufferSlice{mem.SliceBuffer(b)}}, nil
	}
	backing := pool.Get(size)
	b, err := options.MarshalAppend((*backing)[:0], m)
	if err != nil {
		pool.Put(backing)
		return nil, err
	}
	return c.parcel(backing, b), nil
}

// parcel hands a message in a buffer of the pool over, which the call's reservation pays for.
func (c *callReads) parcel(backing *[]byte, b []byte) *outbound {
	h := c.building
	p := &parcel{pool: c.budget.pool, charge: h, backing: backing}
	out := &outbound{}
	for len(b) > 0 {
		n := len(b)
		if n >= 2*partBytes {
			n = partBytes
		}
		part := b[:n:n]
		out.data = append(out.data, mem.NewBuffer(&part, p))
		b = b[n:]
	}
	p.parts.Store(int32(len(out.data)))
	h.built(int64(cap(*p.backing)))
	c.building = nil
	// Where a write meets the end of its stream, gRPC forgets the bytes without freeing them;
	// then the collector finds the parcel.
	p.cleanup = runtime.AddCleanup(p, (*charge).release, h)
	return out
}

// parcel is an encoded message that gRPC holds. Only gRPC's buffers refer to it. It is the
// pool that they go back to.
type parcel struct {
	pool    mem.BufferPool // where backing came from
	charge  *charge
	backing *[]byte
	parts   atomic.Int32 // not yet freed
	cleanup runtime.Cleanup
}

// Get implements mem.BufferPool; nothing is taken from a parcel.
func (p *parcel) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool: gRPC is done with one part.
func (p *parcel) Put(*[]byte) {
	last := p.parts.Add(-1) == 0
	if last {
		p.cleanup.Stop()
		p.pool.Put(p.backing)
	}
	p.charge.left(last)
}
