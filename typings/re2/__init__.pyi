"""What this repository uses of google-re2, which brings no types of its own."""

class error(Exception): ...

class Options:
    max_mem: int
    log_errors: bool
    never_capture: bool

class _Regexp:
    def fullmatch(self, text: bytes) -> object | None: ...

def compile(pattern: bytes, options: Options | None = None) -> _Regexp: ...
