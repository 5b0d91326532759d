"""Generated first replies of the stdio servers, sent before anything heavy is imported."""
