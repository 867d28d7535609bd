from pydantic import BaseModel


class StructuralTag(BaseModel):
    """Stand-in: sglang's request models subclass and annotate with it."""
