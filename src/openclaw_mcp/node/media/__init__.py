"""Screen, camera, microphone and speech."""
