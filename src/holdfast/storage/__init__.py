"""File systems and object stores, blobs, retrievable handles, the StateHandleStore interface, the fenced register."""
