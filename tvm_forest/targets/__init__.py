"""IRModule + Target -> library: what differs from device to device."""
