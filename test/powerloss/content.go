package powerloss

import "slices"

// pageSize is the unit in which a disk keeps or loses data.
const pageSize = 4096

// page is one page of a file at one moment. Pages are never changed once made, so one may
// stand in many contents, and two with the same address are equal.
type page [pageSize]byte

// pageVersion says what the page at an index became; nil is a page of zeros.
type pageVersion struct {
	index int
	page  *page
}

// content is what a file holds.
type content struct {
	size  int64
	pages []*page // nil = zeros
}

// write changes the content and returns the pages that it changed.
func (c *content) write(off int64, data []byte) []pageVersion {
	var changed []pageVersion
	if len(data) == 0 {
		return nil
	}
	c.size = max(c.size, off+int64(len(data)))
	c.fit()
	for len(data) > 0 {
		i := int(off / pageSize)
		p := &page{}
		if old := c.pages[i]; old != nil {
			*p = *old
		}
		n := copy(p[off%pageSize:], data)
		c.pages[i] = p
		changed = append(changed, pageVersion{i, p})
		off, data = off+int64(n), data[n:]
	}
	return changed
}

// truncate changes the content and returns the pages that it changed.
func (c *content) truncate(size int64) []pageVersion {
	var changed []pageVersion
	first := int((size + pageSize - 1) / pageSize)
	for i := first; i < len(c.pages); i++ {
		if c.pages[i] != nil {
			changed = append(changed, pageVersion{i, nil})
		}
	}
	if i := int(size / pageSize); size < c.size && size%pageSize != 0 && c.pages[i] != nil {
		p := &page{}
		copy(p[:size%pageSize], c.pages[i][:])
		c.pages[i] = p
		changed = append(changed, pageVersion{i, p})
	}
	c.size = size
	c.fit()
	return changed
}

// fit makes the list of pages as long as the size says.
func (c *content) fit() {
	n := int((c.size + pageSize - 1) / pageSize)
	if n <= len(c.pages) {
		c.pages = slices.Delete(c.pages, n, len(c.pages))
		return
	}
	c.pages = append(c.pages, make([]*page, n-len(c.pages))...)
}

// at is the page at an index, nil beyond the end.
func (c *content) at(i int) *page {
	if i < len(c.pages) {
		return c.pages[i]
	}
	return nil
}

// set puts a page at an index, whatever the size.
func (c *content) set(v pageVersion) {
	if v.index >= len(c.pages) {
		c.pages = append(c.pages, make([]*page, v.index+1-len(c.pages))...)
	}
	c.pages[v.index] = v.page
}

func (c *content) clone() content { return content{size: c.size, pages: slices.Clone(c.pages)} }

// bytes is the whole content in memory of its own.
func (c *content) bytes() []byte {
	out := make([]byte, c.size)
	for i, p := range c.pages {
		if from := int64(i) * pageSize; p != nil && from < c.size {
			copy(out[from:], p[:])
		}
	}
	return out
}
