"""What TensorFlow's checkpoints call the parts of Keras's objects, in Keras 2 (tf_keras) and in Keras 3 on TensorFlow."""
